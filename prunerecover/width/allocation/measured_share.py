"""The share of a cost that a narrowed model really saves, and allocations asked for again where it is another.

The cost model is exact where every weight is applied at a fixed number of positions. It is not where units are
positions of other weights (an MLP-Mixer's channels), or where the data decide how often a layer runs (the detections
of an R-CNN): there the budget that is passed on is corrected, and what it comes to is said. Where the data decide, it
comes to something else on every sample, so that a budget that is met on one may be missed on others; that is said, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from prunerecover.display.progress import progress

Found = TypeVar("Found")
POINT = 0.01  # of the cost
TRIALS = 6
FAR = 0.05  # of the cost: more than sequences of other lengths make of the same units


@dataclass(frozen=True)
class Shares:
    """What an allocation saves, as shares of the whole cost.

    Attributes:
        predicted: By the cost model.
        measured: On the narrowed model.
        unit: What the cheapest unit that is left saves: budgets cannot be met closer.
    """

    predicted: float
    measured: float
    unit: float


@dataclass(frozen=True)
class SavedOn:
    """What a plan saves of the MACs of several inputs, as shares of the whole.

    Attributes:
        first: Of the first calibration sample, which the plan is made for.
        last: Of the last one.
        batch: Of the first batch as it is.
        samples: How many samples that has.
    """

    first: float
    last: float
    batch: float
    samples: int


@dataclass(frozen=True)
class _Trial(Generic[Found]):
    asked: float
    found: Found
    shares: Shares


def meet_measured(
    cost: str, wanted: float, allocate: Callable[[float], Found], shares_of: Callable[[Found], Shares]
) -> tuple[Found, float]:
    """Return the allocation whose measured share is nearest to what is wanted, and that share; warn if it is not near.

    Near is within a point, or within two where units are as large as that.

    Args:
        cost: "macs" or "params", for the warning.
        wanted: The share that is to go.
        allocate: Returns an allocation for a share; a ValueError says that there is none.
        shares_of: What an allocation saves.

    Raises:
        ValueError: If there is no allocation for the share that is wanted.
    """
    with progress("meeting the budget"):
        best = _nearest(wanted, allocate, shares_of)
    if _distance(best, wanted) > min(max(POINT, best.shares.unit), 2 * POINT):
        warnings.warn(
            f"The plan removes {best.shares.measured:.1%} of the {cost} on the first calibration sample, not the "
            f"{wanted:.1%} that were asked for: its units are large (the smallest that is left saves "
            f"{best.shares.unit:.1%}), or what they save depends on the data or on each other. Ask for another budget "
            "until this number suits you, leave such groups out with ignore=, or lower round_to if you pass it.",
            stacklevel=2,
        )
    return best.found, best.shares.measured


def _nearest(wanted: float, allocate: Callable[[float], Found], shares_of: Callable[[Found], Shares]) -> _Trial[Found]:
    best = latest = _tried(allocate, shares_of, wanted)
    below, above = (0.0, 0.0), (1.0, 1.0)  # what was asked for, and what came of it
    for _ in range(TRIALS - 1):
        found = latest.shares
        if abs(found.predicted - found.measured) <= POINT or _distance(latest, wanted) <= POINT:
            break
        if found.measured < wanted:
            below = max(below, (latest.asked, found.measured))
        else:
            above = min(above, (latest.asked, found.measured))
        asked = below[0] + (above[0] - below[0]) * (wanted - below[1]) / max(above[1] - below[1], POINT)
        try:
            latest = _tried(allocate, shares_of, min(asked, 0.99))
        except ValueError:  # no more can go
            break
        best = min(best, latest, key=lambda trial: _distance(trial, wanted))
    return best


def warn_if_inputs_decide(saved: SavedOn) -> None:
    """Warn if a plan saves another share of the MACs on other inputs than the sample that it is made for."""
    if abs(saved.first - saved.last) > FAR:
        warnings.warn(
            f"The plan removes {saved.first:.1%} of the macs on the first calibration sample, but {saved.last:.1%} on "
            "the last one: how often layers run depends on the data, such as on how many objects the model detects or "
            "how long a text is. Measure on data of yours once the model is trained, or ask for a budget of params.",
            stacklevel=2,
        )
    elif abs(saved.first - saved.batch) > 2 * POINT:
        warnings.warn(
            f"The plan removes {saved.first:.1%} of the macs of one sample, but {saved.batch:.1%} of those of a batch "
            f"of {saved.samples}: part of what the model computes is the same for any number of samples. Ask for a "
            "budget whose share of a batch suits you, if batches are what you run.",
            stacklevel=2,
        )


def _tried(allocate: Callable[[float], Found], shares_of: Callable[[Found], Shares], share: float) -> _Trial[Found]:
    found = allocate(share)
    return _Trial(share, found, shares_of(found))


def _distance(trial: _Trial[Found], wanted: float) -> float:
    return abs(trial.shares.measured - wanted)
