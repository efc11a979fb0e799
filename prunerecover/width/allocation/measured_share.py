"""Measured savings of a narrowed model, and repeated allocations where savings differ from the cost model.

The cost model is exact if every weight is used at a fixed number of positions. Exceptions are units that are positions
of other weights (an MLP-Mixer's channels), and layers with a data-dependent number of runs (the detections of an
R-CNN). There the budget for the allocation is corrected, and the final saving is reported. If the data decide, the
saving differs from sample to sample, and a budget met on a sample may be missed on the next; a warning says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from prunerecover.display.progress import progress

Found = TypeVar("Found")
POINT = 0.01  # share of the cost
TRIALS = 6
FAR = 0.05  # share of the cost, above the differences between sequences of different lengths


@dataclass(frozen=True)
class Shares:
    """Savings of an allocation, as shares of the whole cost.

    Attributes:
        predicted: Saving by the cost model.
        measured: Saving of the narrowed model.
        unit: Saving of the cheapest remaining unit, the precision of a budget.
    """

    predicted: float
    measured: float
    unit: float


def meet_measured(
    cost: str, wanted: float, allocate: Callable[[float], Found], shares_of: Callable[[Found], Shares]
) -> tuple[Found, float]:
    """Return the allocation with the measured share nearest to a wanted share, and its share; warn if not near.

    Near is within a point, or within the size of the cheapest unit up to two points.

    Args:
        cost: Name of the cost, "macs" or "params", for the warning.
        wanted: Share to remove.
        allocate: Function from a share to an allocation; raises ValueError if there is none.
        shares_of: Function from an allocation to its savings.

    Raises:
        ValueError: If there is no allocation for the wanted share.
    """
    with progress("meeting the budget"):
        found, shares = _nearest(wanted, allocate, shares_of)
    if abs(shares.measured - wanted) > min(max(POINT, shares.unit), 2 * POINT):
        warnings.warn(
            f"The plan removes {shares.measured:.1%} of the {cost} on the first calibration sample, not the "
            f"requested {wanted:.1%}: its units are large (the smallest that is left saves {shares.unit:.1%}), or "
            "their savings depend on the data or on each other. Ask for another budget until this number suits you, "
            "leave such groups out with ignore=, or lower round_to if you pass it.",
            stacklevel=2,
        )
    return found, shares.measured


def _nearest(
    wanted: float, allocate: Callable[[float], Found], shares_of: Callable[[Found], Shares]
) -> tuple[Found, Shares]:
    def tried(share: float) -> tuple[Found, Shares]:
        found = allocate(share)
        return found, shares_of(found)

    best, asked = tried(wanted), wanted
    shares = best[1]
    below, above = (0.0, 0.0), (1.0, 1.0)  # requested and measured shares
    for _ in range(TRIALS - 1):
        if abs(shares.predicted - shares.measured) <= POINT or abs(shares.measured - wanted) <= POINT:
            break
        if shares.measured < wanted:
            below = max(below, (asked, shares.measured))
        else:
            above = min(above, (asked, shares.measured))
        asked = below[0] + (above[0] - below[0]) * (wanted - below[1]) / max(above[1] - below[1], POINT)
        asked = min(asked, 0.99)
        try:
            found, shares = tried(asked)
        except ValueError:  # no more can go
            break
        best = min(best, (found, shares), key=lambda one: abs(one[1].measured - wanted))
    return best


def warn_if_inputs_decide(first: float, last: float, batch: float, samples: int) -> None:
    """Warn if a plan saves another share of the MACs on other inputs than on the plan's sample.

    Args:
        first: Saving on the first calibration sample, the basis of the plan.
        last: Saving on the last calibration sample.
        batch: Saving on the whole first batch.
        samples: Number of samples in the batch.
    """
    if abs(first - last) > FAR:
        warnings.warn(
            f"The plan removes {first:.1%} of the macs on the first calibration sample, but {last:.1%} on "
            "the last one: how often layers run depends on the data, such as on how many objects the model detects or "
            "how long a text is. Measure on data of yours once the model is trained, or ask for a budget of params.",
            stacklevel=2,
        )
    elif abs(first - batch) > 2 * POINT:
        warnings.warn(
            f"The plan removes {first:.1%} of the macs of one sample, but {batch:.1%} of those of a batch "
            f"of {samples}: part of the computation is the same for any number of samples. If you run batches, "
            "ask for a budget whose share of a batch suits you.",
            stacklevel=2,
        )
