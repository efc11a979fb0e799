"""Fit of plans in several stages, each starting from the network after the earlier stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from prunerecover.calibration.samples import CalibrationSet
from prunerecover.plan.edits import Config, Edit, Merge, Narrow, Refit, Remove
from prunerecover.session.pruned_output import PrunedOutput
from prunerecover.width.tuning import fitted_and_tuned

Tensors = Mapping[str, Tensor]
Fit = Callable[[Sequence[Edit], Sequence[Edit], Tensors], Tensors]  # earlier edits, edits of a stage, tensors


def fitted_in_stages(
    edits: Sequence[Edit], samples: CalibrationSet, judge: PrunedOutput, others: Fit = lambda *_: {}
) -> dict[str, Tensor]:
    """Return the tensors of edits; in all stages, weights are tuned towards the output of the dense model.

    Args:
        edits: Edits in order, with the names of their tensors.
        samples: Samples for fitting widths.
        judge: Comparison of outputs with the dense model's.
        others: Function that fits a stage without narrowing, given all edits before, the edits of the stage, and the
            tensors of the edits before.
    """
    tensors, done = dict[str, Tensor](), list[Edit]()
    for stage in _stages(edits):
        if any(isinstance(edit, Narrow) and edit.tensors for edit in stage):
            tensors = fitted_and_tuned([*done, *stage], tensors, samples, judge, since=len(done))
        else:
            tensors |= others(done, stage, tensors)
        done += stage
    return tensors


def _stages(edits: Sequence[Edit]) -> Iterator[list[Edit]]:
    """Split edits into runs that can be fitted on one model.

    A new stage begins at a merge, at a unit named after blocks have moved or after narrowing or refitting, and at a
    group narrowed a second time.
    """
    stage: list[Edit] = []
    moved = False
    for edit in edits:
        is_block = isinstance(edit, Remove) and edit.kind == "block"
        other = any(stage and isinstance(stage[-1], apart) != isinstance(edit, apart) for apart in (Narrow, Refit))
        again = isinstance(edit, Narrow) and any(isinstance(e, Narrow) and e.unit == edit.unit for e in stage)
        behind = other or again or (moved and not is_block and not isinstance(edit, Config))
        if stage and (isinstance(edit, Merge) or behind):
            yield stage
            stage, moved = [], False
        moved = moved or is_block
        stage.append(edit)
    if stage:
        yield stage
