"""Steps of pruning in terms of a budget: the amount of one step, the total of several, and the cost left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from prunerecover.checkpoint.ledger_record import QualityTrail
from prunerecover.plan.budget import Budget
from prunerecover.quality import Quality

USUAL = 0.1  # share of the MACs


def step_of(step: float | Budget | None, quality: Quality) -> Budget:
    """Return the amount to remove in one step, relative to the network before the first step.

    Args:
        step: Share of the MACs, or a budget; None: a tenth of the MACs.
        quality: Quality to keep, with the largest share to remove in all.

    Raises:
        ValueError: If the step is empty, above the largest share, or no share or number that can be removed several
            times.
        TypeError: If the step is neither a number nor a budget.

    >>> step_of(0.05, Quality("val_acc", drop=0.01))
    Budget(macs=0.05)
    """
    if step is not None and (isinstance(step, bool) or not isinstance(step, int | float | Budget)):
        raise TypeError(
            f"Expected argument step to be a share of the MACs or a Budget, but got {step!r}. For example step=0.1, "
            'step=Budget(latency=0.1) or step=Budget(remove={"block": 1}).'
        )
    if not isinstance(step, Budget):
        share = USUAL if step is None else step
        _check_share("step", share, quality.most)
        return Budget(macs=share)
    given = step.to_dict()
    if step.ratio is not None or step.amounts:
        raise ValueError(
            f"Expected argument step to be a share of a cost or a number of units that goes each time, but got {given}."
            " For example Budget(latency=0.1): a tenth of the dense network's."
        )
    for name, share in step.shares.items():
        _check_share(f"step's {name}", share, quality.most)
    if step.remove is not None and not any(step.remove.values()):
        raise ValueError(f"Expected argument step to remove at least one unit, but got {given}.")
    return step


def _check_share(name: str, share: float, most: float) -> None:
    if not 0 < share <= most:
        raise ValueError(
            f"Expected argument {name} to be a share above 0 and at most {most}, which goes in all steps together "
            f"(Quality's most), but got {share}."
        )


def total_of(step: Budget, steps: int, quality: Quality) -> Budget | None:
    """Return the amount to remove in a number of steps together; None: earlier steps have reached the largest share.

    >>> quality = Quality("val_acc", drop=0.01, most=0.25)
    >>> [total_of(Budget(macs=0.1), steps, quality) for steps in (2, 3, 4)]
    [Budget(macs=0.2), Budget(macs=0.25), None]
    """
    if step.remove is not None:
        return Budget(remove={kind: count * steps for kind, count in step.remove.items()})
    before, total = (_shares(step, n, quality) for n in (steps - 1, steps))
    return None if before == total else replace(step, **total)


def _shares(step: Budget, steps: int, quality: Quality) -> dict[str, Any]:
    return {name: min(round(share * steps, 9), quality.most) for name, share in step.shares.items()}


def begun(quality: Quality, target: str, dense: float) -> QualityTrail:
    """Return the record of steps that begin now, if the network before the first step has the quality.

    Args:
        quality: Metric to keep, with the allowed drop.
        target: Path of the network.
        dense: Value of the metric.

    Raises:
        ValueError: If the network misses the quality, or the value is no number.
    """
    name, worst = quality.monitor, quality.worst(dense)
    if not math.isfinite(dense):
        raise ValueError(
            f"Expected a number as {name} of the network before the first step, but got {dense}. Train it first "
            "(schedule), or look at what validation computes."
        )
    if not quality.holds(dense, dense):
        raise ValueError(
            f"Expected {name} of the network before the first step to be within {quality.drop} of "
            f"baseline={quality.baseline}, but it is {dense:.5g}: every step would be taken back. Train it longer "
            "before (schedule), or leave baseline out, which compares with the network as it is."
        )
    return QualityTrail(target=target, monitor=name, dense=dense, worst=worst)


def cost_left(taken: Iterable[Mapping[str, float]], step: Budget) -> dict[str, float]:
    """Return the share of each of the first network's costs left after surgeries; empty for steps in units.

    Args:
        taken: Shares removed by each surgery, relative to the network before the surgery.
        step: Amount to remove in a step.
    """
    surgeries = list(taken)
    return {name: math.prod(1 - each.get(name, 0.0) for each in surgeries) for name in step.shares}
