"""One executed operation, and what its rule concludes of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from prunerecover.graph.dimensions.dimension_ids import Maps
from prunerecover.graph.dimensions.ties import Chain, Info, Ties


@dataclass(frozen=True)
class Operation:
    """An operation of PyTorch that has just been executed.

    Attributes:
        name: Without the underscore of operations in place.
        in_place: Whether it had one.
    """

    func: Any
    name: str
    in_place: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors among its arguments."""
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Tensor)]

    @cached_property
    def outputs(self) -> list[Tensor]:
        """The tensors that it returned."""
        return [leaf for leaf in tree_leaves(self.out) if isinstance(leaf, Tensor)]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument, however it was passed.

        Args:
            position: Its place among positional arguments.
            name: Its keyword.
            default: If it was not passed.
        """
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


Rule = Callable[[Ties, Operation], None]


def record_output(
    ties: Ties, operation: Operation, maps: Maps, chain: Chain | None = None, out: Tensor | None = None
) -> None:
    """Note an output (the first, unless given), and whether it depends on the model's input.

    Args:
        ties: Ties of the forward pass.
        operation: That was run.
        maps: Ids along the output's dimensions.
        chain: That goes on through the output; None: none does.
        out: The output; None: the first.
    """
    infos = [ties.info(t) for t in operation.tensors]
    constant = all(info.constant for info in infos)
    static = not constant and all(info.static or info.constant for info in infos)
    ties.note(operation.outputs[0] if out is None else out, Info(maps, static, constant, chain=chain))


def propagate(ties: Ties, operation: Operation, maps: Maps, out: Tensor | None = None) -> None:
    """Note an output that follows from the operands unit by unit; several chains end in it, a single one goes on.

    Args:
        ties: Ties of the forward pass.
        operation: That was run.
        maps: Ids along the output's dimensions.
        out: The output; None: the first.
    """
    chains = list(dict.fromkeys(ties.info(t).chain for t in activations(ties, operation)))
    if len(chains) > 1:
        ties.record_addends(*chains)
    record_output(ties, operation, maps, chains[0] if len(chains) == 1 else None, out)


def activations(ties: Ties, operation: Operation) -> list[Tensor]:
    """The operands that have ids and depend on the model's input."""
    return [t for t in operation.tensors if ties.info(t).maps and not ties.info(t).static]


def unknown(ties: Ties, operation: Operation) -> None:
    """Fix everything that an operation without a rule touches."""
    maps = [m for t in operation.tensors for m in ties.info(t).maps]
    if maps:
        ties.ids.pin(*maps)
    for out in operation.outputs:
        record_output(ties, operation, (), out=out)
