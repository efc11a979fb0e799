"""Replacements applied for the length of a `with` block, and the first block changed by each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

from torch import Tensor

from prunerecover.calibration.candidates import Candidate
from prunerecover.families.layout import Layout
from prunerecover.model.block_runner import BlockRunner
from prunerecover.plan.edits import Edit, Fold, Remove, Replace
from prunerecover.surgery.apply_edits import temporarily_applied


@contextmanager
def in_place(runner: BlockRunner, layout: Layout, candidate: Candidate) -> Iterator[None]:
    """Apply a replacement inside a `with` block. Removed blocks are skipped, so paths stay the same.

    Args:
        runner: Runner of the model.
        layout: Layout of the dense model.
        candidate: The stand-in.
    """
    edit = candidate.edit
    with ExitStack() as stack:
        if not (isinstance(edit, Remove) and edit.kind == "block"):
            stack.enter_context(_applied(runner, edit, candidate.values))
        else:
            stack.enter_context(runner.skipping([layout.block_of(edit.unit)]))
            if candidate.fold is not None:
                stack.enter_context(_applied(runner, candidate.fold, candidate.values))
        yield


def first_changed(layout: Layout, candidate: Candidate) -> int:
    """Return the first block with a changed output.

    Args:
        layout: Layout of the dense model.
        candidate: The replacement; a folded map changes the block with the linear.
    """
    edit = candidate.fold or candidate.edit
    assert isinstance(edit, Fold | Remove | Replace)
    return layout.block_of(edit.into if isinstance(edit, Fold) else edit.unit)


def _applied(runner: BlockRunner, edit: Edit, values: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    if isinstance(edit, Replace | Fold):
        edit = edit.model_copy(update={"tensors": tuple(values)})
    return temporarily_applied(runner.model, edit, values)
