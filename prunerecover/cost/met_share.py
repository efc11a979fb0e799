"""Loop of planning that corrects shares of costs until the measured shares of the plan meet the wanted shares."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Found = TypeVar("Found")
Shares = Mapping[str, float]  # by the name of the cost
TRIES = 4
MOST = 0.99  # largest share to plan for
FAR = 0.02  # excess over a budget that calls for a warning
ROUNDING = 1e-9


class BudgetMissed(UserWarning):
    """Warning that a plan saves less than the budget, or clearly more."""


@dataclass(frozen=True)
class Wanted:
    """Wanted share of a cost to remove.

    Attributes:
        share: Share.
        below: Tolerance below the share.
        above: Tolerance above the share; beyond, a smaller share is planned for.
    """

    share: float
    below: float = 0.0
    above: float = FAR


def met_share(
    wanted: Mapping[str, Wanted],
    plan: Callable[[Shares], Found],
    measure: Callable[[Found], Shares],
    *,
    tries: int = TRIES,
) -> tuple[Found, Shares]:
    """Return the best plan, and its measured shares.

    A warning is given if the plan misses the budget, or exceeds the budget by more than two points in every cost.

    Args:
        wanted: Wanted shares, by the name of the cost.
        plan: Function that plans for shares, by the name of the cost: first for the wanted shares, then for more of
            each missed cost. Raises ValueError if so large a share cannot be removed.
        measure: Function that returns the share of each cost removed by a plan.
        tries: Number of plans at most.

    Returns:
        Among the plans that meet every share, the plan with the least total saving; if none does, the nearest plan.

    Raises:
        ValueError: If there is no plan even for the wanted shares.

    >>> wanted = {"latency": Wanted(0.3), "macs": Wanted(0.25)}
    >>> met_share(wanted, lambda asked: asked["latency"], lambda macs: {"latency": 0.75 * macs, "macs": macs})
    (0.4, {'latency': 0.30000000000000004, 'macs': 0.4})
    """
    found: list[tuple[Shares, Found]] = []
    asked = {cost: one.share for cost, one in wanted.items()}
    while len(found) < tries:
        try:
            planned = plan(asked)
        except ValueError:
            if not found:
                raise
            break
        if any(planned == other for _, other in found):
            break
        saved = measure(planned)
        found.append((saved, planned))
        if enough(wanted, saved) and any(_excess(wanted, saved)[cost] <= wanted[cost].above for cost in wanted):
            break
        asked = _asked_again(wanted, asked, saved)
    able = [one for one in found if enough(wanted, one[0])]
    if able:
        saved, planned = min(able, key=lambda one: sum(_excess(wanted, one[0]).values()))
    else:
        saved, planned = max(found, key=lambda one: min(_excess(wanted, one[0]).values()))
    _warn(wanted, saved)
    return planned, saved


def _excess(wanted: Mapping[str, Wanted], saved: Shares) -> dict[str, float]:
    return {cost: saved[cost] - one.share for cost, one in wanted.items()}


def enough(wanted: Mapping[str, Wanted], saved: Shares) -> bool:
    """Return whether removed shares meet the wanted shares.

    Args:
        wanted: Wanted shares, by the name of the cost.
        saved: Removed shares.
    """
    return all(excess >= -wanted[cost].below - ROUNDING for cost, excess in _excess(wanted, saved).items())


def _asked_again(wanted: Mapping[str, Wanted], asked: Shares, saved: Shares) -> dict[str, float]:
    """Return shares to plan for: more of each missed cost, or less of all costs if all are exceeded."""
    missing = {cost: _missing(one.share, saved[cost]) for cost, one in wanted.items()}
    least = min(1.0, max(missing.values()))
    return {cost: min(share * max(least, missing[cost]), MOST) for cost, share in asked.items()}


def _missing(share: float, saved: float) -> float:
    """Return the factor on the share to plan for."""
    if share <= 0:
        return 0.0
    return share / saved if saved > 0 else 2.0


def _warn(wanted: Mapping[str, Wanted], saved: Shares) -> None:
    goes = " and ".join(f"{saved[cost]:.1%} of the {cost}" for cost in wanted)
    asked = " and ".join(f"{one.share:.1%}" for one in wanted.values())
    said = f"The plan saves {goes} for a budget of {asked}"
    if not enough(wanted, saved):
        busy = " Is the machine busy?" if "latency" in wanted else ""
        way_out = ", or plan on an idle one" if "latency" in wanted else ", or ignore fewer units"
        text = f"{said}, and what was planned for more saves no more.{busy} Ask for a larger budget{way_out}."
    elif min(_excess(wanted, saved).values()) > FAR:
        text = (
            f"{said}, and nothing nearer that meets it was found. Ignore fewer units, so that smaller ones may go, or "
            "ask for another budget until these numbers suit you."
        )
    else:
        return
    warnings.warn(text, BudgetMissed, stacklevel=7)
