"""Hidden states between blocks of the pruned and the dense model, batch by batch.

Memory for states is bounded, whatever the number of samples: later batches have None for a state, and run from the
beginning each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from prunerecover.divergence.outputs import Outputs, compared, unpadded
from prunerecover.model.batches import ModelInputs
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.hooks import recording
from prunerecover.model.paths import get_module

Hidden = list[Tensor | None]

MOST_KEPT = 1 << 30  # bytes for each kind of values per token
LISTS = 5  # lists of hidden states in `HiddenStates`


@dataclass
class HiddenStates:
    """Hidden states before block number `at`, per batch; None for batches run from the beginning.

    Attributes:
        fit: States of the pruned model on the fitting samples.
        dense: States of the dense model on the fitting samples.
        held_out: States of the pruned model on the held-out samples.
        same: Whether the pruned model still equals the dense one up to here.
        after_fit: States of the pruned model after block `at`, if known; cleared when the block changes.
        after_dense: The same of the dense model.
        fitting: Whether the states on the fitting samples are kept.
    """

    fit: Hidden
    dense: Hidden
    held_out: Hidden
    same: bool
    at: int = 0
    after_fit: Hidden = field(default_factory=list)
    after_dense: Hidden = field(default_factory=list)
    fitting: bool = True


def moved_on(
    runner: BlockRunner, batches: Sequence[ModelInputs], start: int, stop: int, hidden: Hidden, after: Hidden
) -> Hidden:
    """Return the states before block `stop`, from the states before `start` or, if known, after `start`."""
    if after:
        start, hidden = start + 1, after
    if start == stop:
        return hidden
    found: Hidden = []
    for batch, state in zip(batches, hidden, strict=True):
        dropped = start > 0 and state is None
        keep(found, None if dropped else runner.advance(batch, start, state, stop))
    return found


def keep(states: Hidden, state: Tensor | None) -> None:
    """Append a state, or None if memory is full."""
    room = MOST_KEPT // LISTS - sum(other.nbytes for other in states if other is not None)
    states.append(state if state is not None and state.nbytes <= room else None)


class DenseOutputs:
    """Outputs of the dense model without padded positions, batch by batch, computed again where memory is full.

    The first batches keep outputs; later batches keep the smaller states after the last block, while there is room.

    Args:
        runner: Runner of the dense model, in evaluation mode.
        batches: Batches on the model's device.
    """

    def __init__(self, runner: BlockRunner, batches: Sequence[ModelInputs]) -> None:
        self._runner, self._batches, self._depth = runner, batches, len(runner.blocks)
        self._outputs, self._states, room = list[Outputs](), Hidden(), MOST_KEPT
        for batch in batches:
            if room >= 0:
                output = self._output(batch, 0, None)
                room -= output.nbytes
            if room >= 0:
                self._outputs.append(output)
            else:
                keep(self._states, runner.advance(batch, 0, None, self._depth))

    def of(self, number: int) -> Outputs:
        """Return the output on a batch, `(N, classes)`, `(N, T, vocabulary)` or of the model's own shape."""
        if number < len(self._outputs):
            return self._outputs[number]
        return self._output(self._batches[number], self._depth, self._states[number - len(self._outputs)])

    def _output(self, batch: ModelInputs, start: int, state: Tensor | None) -> Outputs:
        return unpadded(self._runner.finish(batch, start, state, compared), batch)


def run_watched(
    runner: BlockRunner, index: int, batch: ModelInputs, hidden: Tensor | None, paths: set[str]
) -> tuple[dict[str, Tensor], Tensor]:
    """Run a block, and return inputs and outputs of the modules at some paths, and the block's output."""
    with recording({path: get_module(runner.model, path) for path in paths}) as seen:
        out = runner.advance(batch, index, hidden, index + 1)
    return seen, out
