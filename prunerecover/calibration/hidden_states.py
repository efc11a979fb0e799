"""Hidden states on the way through a model, block by block: of the pruned one and of the dense one beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from prunerecover.model.batches import ModelInputs
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.hooks import recording
from prunerecover.model.paths import get_module

Hidden = list[Tensor | None]


@dataclass
class HiddenStates:
    """Hidden states that enter block number `at`, per batch; None enters the first.

    Attributes:
        fit: Of the pruned model on the fitting samples.
        dense: Of the dense model on the same.
        held_out: Of the pruned model on the held-out samples.
        same: Whether the pruned model is still the dense one up to here.
        after_fit: What leaves the block, where it has been run already; emptied when the block changes.
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
    """Return what enters block `stop`, given what enters `start` and, if it is known, what leaves it."""
    if after:
        start, hidden = start + 1, after
    if start == stop:
        return hidden
    return [runner.advance(b, start, h, stop) for b, h in zip(batches, hidden, strict=True)]


def run_watched(
    runner: BlockRunner, index: int, batch: ModelInputs, hidden: Tensor | None, paths: set[str]
) -> tuple[dict[str, Tensor], Tensor]:
    """Run one block, and return inputs and outputs of the modules at some paths, and what leaves the block."""
    with recording({path: get_module(runner.model, path) for path in paths}) as seen:
        out = runner.advance(batch, index, hidden, index + 1)
    return seen, out
