"""Records of the outputs of an executed operation."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from prunerecover.graph.dimensions.dimension_ids import Maps
from prunerecover.graph.dimensions.ties import Chain, Info, Ties
from prunerecover.graph.dimensions.watching import Operation

Rule = Callable[[Ties, Operation], None]


def record_output(
    ties: Ties, operation: Operation, maps: Maps, chain: Chain | None = None, out: Tensor | None = None
) -> None:
    """Record an output, and whether it depends on the model's input.

    Args:
        ties: Ties of the forward pass.
        operation: Executed operation.
        maps: Ids along the output's dimensions.
        chain: Chain that goes on through the output; None: no chain.
        out: Output; None: the first.
    """
    infos = [ties.info(t) for t in operation.tensors]
    constant = all(info.constant for info in infos)
    static = not constant and all(info.static or info.constant for info in infos)
    ties.note(operation.outputs[0] if out is None else out, Info(maps, static, constant, chain=chain))


def propagate(ties: Ties, operation: Operation, maps: Maps, out: Tensor | None = None) -> None:
    """Record an output computed from the operands unit by unit; a single chain goes on, several chains end.

    Args:
        ties: Ties of the forward pass.
        operation: Executed operation.
        maps: Ids along the output's dimensions.
        out: Output; None: the first.
    """
    chains = list(dict.fromkeys(ties.info(t).chain for t in activations(ties, operation)))
    if len(chains) > 1:
        ties.record_addends(*chains)
    record_output(ties, operation, maps, chains[0] if len(chains) == 1 else None, out)


def activations(ties: Ties, operation: Operation) -> list[Tensor]:
    """The operands with ids that depend on the model's input."""
    return [t for t in operation.tensors if ties.info(t).maps and not ties.info(t).static]


def unknown(ties: Ties, operation: Operation) -> None:
    """Fix all ids of the operands, for an operation without a rule."""
    maps = [m for t in operation.tensors for m in ties.info(t).maps]
    if maps:
        ties.ids.pin(*maps)
    for out in operation.outputs:
        record_output(ties, operation, (), out=out)
