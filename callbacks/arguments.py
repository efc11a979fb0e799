"""Arguments that several callbacks take, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from prunerecover.callbacks.schedules.schedule import PruneSchedule
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan

Merge = Literal["copy", "at_surgery", "never"]
Schedule = PruneSchedule | int | dict[str, Any]


class SurgeryArguments(TypedDict, total=False):
    """Types of the arguments that all pruning callbacks take.

    Args:
        step: What goes each time until a metric falls, with Quality(...) in the place of a budget: a share of the MACs
            of the network before the first step, or a budget, such as Budget(latency=0.1) or
            Budget(remove={"block": 1}). None: 0.1. Each step is recovered from in as many epochs as the schedule's
            `every` says, 1 by default.
        plan: A plan, or the path of one, which is read when a loop is set up, instead of deciding here. Also applied
            before test, validate and predict when no checkpoint says otherwise. In a fit, its fitted tensors are fitted
            anew if the weights have changed since.
        target: Path of the network inside the LightningModule, "" for the module itself; default: the single one of a
            supported family, else the only child with weights.
        schedule: When; also the epoch to start at, or a dict of `PruneSchedule`'s arguments. `every` and `times` divide
            a share of a cost among several surgeries, each of which decides anew.
        merge: "copy" saves a merged copy in `pruned/` beside the checkpoints at the end of the fit; "at_surgery" merges
            the live network; "never" does neither.
        reconstruct: Fit the weights that are left to what the network gave before, layer by layer, and keep that where
            it brings the output of samples that were held out nearer to what it was; see `reconstruct`. Takes a copy of
            the network and about two passes over the calibration samples per layer. None: networks that mostly
            normalise by BatchNorm, which gain by it (a vision transformer lost). Not before sharding.
    """

    step: float | Budget | None
    plan: str | Path | Plan | None
    target: str | None
    schedule: Schedule | None
    merge: Merge
    reconstruct: bool | None


def check_one(given: Mapping[str, Any], example: str) -> None:
    """Raise ValueError unless exactly one of several arguments is given.

    Args:
        given: Arguments by name, None where one is not given.
        example: A call that is right.
    """
    said = [name for name, value in given.items() if value is not None]
    if len(said) != 1:
        *first, last = given
        way_out = " Set all but one to None (null in a recipe)." if said else ""
        raise ValueError(
            f"Expected exactly one of {', '.join(first)} and {last}, e.g. {example}, but got "
            f"{' and '.join(said) or 'none'}.{way_out}"
        )


def check_distillation(weight: float, temperature: float, name: str) -> None:
    """Raise TypeError unless these are numbers, and ValueError unless a teacher can be weighed and softened by them.

    Args:
        weight: Of the teacher, 0 to 1.
        temperature: Divides the logits.
        name: Of the argument with the weight.
    """
    for argument, value in ((name, weight), ("temperature", temperature)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"Expected argument {argument} to be a number, but got {value!r}.")
    if not 0 <= weight <= 1:
        raise ValueError(f"Expected argument {name} to be between 0 and 1, but got {weight}.")
    if temperature <= 0:
        raise ValueError(f"Expected argument temperature to be positive, but got {temperature}.")


def check_merge(merge: str) -> None:
    """Raise ValueError unless this says when a pruned network is merged."""
    if merge not in get_args(Merge):
        raise ValueError(f"Expected argument merge to be 'copy', 'at_surgery' or 'never', but got '{merge}'.")


def check_whole(name: str, value: int, least: int) -> None:
    """Raise TypeError unless an argument is a whole number, and ValueError if it is below the least that makes sense.

    Args:
        name: Of the argument.
        value: What was given.
        least: That is allowed.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"Expected argument {name} to be a whole number, but got {value!r}.")
    if value < least:
        raise ValueError(f"Expected argument {name} to be at least {least}, but got {value}.")
