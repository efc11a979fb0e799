"""Arguments shared by several callbacks, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from prunerecover.callbacks.schedules.schedule import PruneSchedule
from prunerecover.callbacks.surgery.reconstruction import Reconstruct
from prunerecover.model.arguments import check_number
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan

Merge = Literal["copy", "at_surgery", "never"]
Schedule = PruneSchedule | int | dict[str, Any]


class SurgeryArguments(TypedDict, total=False):
    """Types of the arguments of all pruning callbacks.

    Args:
        step: Amount removed by each surgery while a metric keeps its level (with Quality(...) as the budget): a share
            of the MACs of the network before the first surgery, or a budget, such as Budget(latency=0.1) or
            Budget(remove={"block": 1}). None: 0.1. Each surgery is followed by as many epochs of recovery as the
            schedule's `every` says, 1 by default.
        plan: Plan to apply, or the path of a plan file, read when a loop is set up; nothing is planned here then. Also
            applied before test, validate and predict, unless a checkpoint holds surgeries. In a fit, fitted tensors of
            the plan are fitted again if the weights have changed since planning.
        target: Path of the network inside the LightningModule, "" for the module itself; default: the single network of
            a supported family, else the only child with weights.
        schedule: Times of the surgeries, as a `PruneSchedule`, a dict of its arguments, or the first epoch alone.
            `every` and `times` divide a share of a cost among several surgeries; each surgery makes a plan of its own.
        merge: "copy" saves a merged copy in `pruned/` beside the checkpoints at the end of the fit; "at_surgery" merges
            the live network; "never" does neither.
        reconstruct: Whether the remaining weights are fitted, layer by layer, to the outputs of the network before
            surgery, and kept where held-out samples come nearer to the dense output; see `reconstruct`. Takes a copy of
            the network and about two passes over the calibration samples per layer. None: only in networks with mostly
            BatchNorm layers, whose accuracy gains (a vision transformer lost accuracy). "blocks" has each block learn
            the hidden states of before surgery, see `reconstruct_blocks`: for language models. Not available before
            sharding.
    """

    step: float | Budget | None
    plan: str | Path | Plan | None
    target: str | None
    schedule: Schedule | None
    merge: Merge
    reconstruct: Reconstruct


def check_one(given: Mapping[str, Any], example: str) -> None:
    """Raise ValueError unless exactly one of several arguments is given.

    Args:
        given: Arguments by name, None for an argument left out.
        example: Correct call to quote in the error.
    """
    said = [name for name, value in given.items() if value is not None]
    if len(said) != 1:
        *first, last = given
        way_out = " Set all but one to None (null in a recipe)." if said else ""
        raise ValueError(
            f"Expected exactly one of {', '.join(first)} and {last}, e.g. {example}, but got "
            f"{' and '.join(said) or 'none'}.{way_out}"
        )


def check_distillation(teacher_weight: float, temperature: float) -> None:
    """Raise TypeError unless both are numbers, and ValueError if the weight or the temperature is out of range.

    Args:
        teacher_weight: Weight of the teacher, 0 to 1.
        temperature: Divisor of the logits.
    """
    check_number("teacher_weight", teacher_weight)
    check_number("temperature", temperature)
    if not 0 <= teacher_weight <= 1:
        raise ValueError(f"Expected argument teacher_weight to be between 0 and 1, but got {teacher_weight}.")
    if temperature <= 0:
        raise ValueError(f"Expected argument temperature to be positive, but got {temperature}.")


def check_merge(merge: str) -> None:
    """Raise ValueError unless `merge` is a known time of merging."""
    if merge not in get_args(Merge):
        raise ValueError(f"Expected argument merge to be 'copy', 'at_surgery' or 'never', but got '{merge}'.")
