"""Plan for shares of costs until the shares that are measured on what was planned meet them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Found = TypeVar("Found")
Shares = Mapping[str, float]  # by the name of the cost
TRIES = 4
MOST = 0.99  # that is planned for
FAR = 0.02  # beyond a budget: more is said
ROUNDING = 1e-9


class BudgetMissed(UserWarning):
    """A plan saves less than its budget asks for, or clearly more."""


@dataclass(frozen=True)
class Wanted:
    """A share of a cost that has to go.

    Attributes:
        share: Share.
        below: By how much it may be missed.
        above: By how much it may be exceeded before less is planned for.
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
    """Return what was planned, and the shares that it is measured to save.

    A warning says where it misses the budget, or exceeds it by more than two points in every cost.

    Args:
        wanted: Shares that have to go, by the name of the cost.
        plan: Plans for shares, by the name of the cost: those that are wanted, then more of what is missed. It raises
            ValueError if so much cannot go.
        measure: Returns the share of each cost that goes with what was planned.
        tries: How often at most something is planned.

    Returns:
        Of what saves enough of every cost, that which saves least; what comes nearest if nothing saves enough.

    Raises:
        ValueError: If not even what is wanted can be planned for.

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
        if _enough(wanted, saved) and any(_excess(wanted, saved)[cost] <= wanted[cost].above for cost in wanted):
            break
        asked = _asked_again(wanted, asked, saved)
    enough = [one for one in found if _enough(wanted, one[0])]
    if enough:
        saved, planned = min(enough, key=lambda one: sum(_excess(wanted, one[0]).values()))
    else:
        saved, planned = max(found, key=lambda one: min(_excess(wanted, one[0]).values()))
    _warn(wanted, saved)
    return planned, saved


def _excess(wanted: Mapping[str, Wanted], saved: Shares) -> dict[str, float]:
    return {cost: saved[cost] - one.share for cost, one in wanted.items()}


def _enough(wanted: Mapping[str, Wanted], saved: Shares) -> bool:
    return all(excess >= -wanted[cost].below - ROUNDING for cost, excess in _excess(wanted, saved).items())


def _asked_again(wanted: Mapping[str, Wanted], asked: Shares, saved: Shares) -> dict[str, float]:
    """Return shares to plan for: more of the costs that are missed, or less of all where all are exceeded."""
    missing = {cost: _missing(one.share, saved[cost]) for cost, one in wanted.items()}
    least = min(1.0, max(missing.values()))
    return {cost: min(share * max(least, missing[cost]), MOST) for cost, share in asked.items()}


def _missing(share: float, saved: float) -> float:
    """Return how many times as much has to be planned for."""
    if share <= 0:
        return 0.0
    return share / saved if saved > 0 else 2.0


def _warn(wanted: Mapping[str, Wanted], saved: Shares) -> None:
    goes = " and ".join(f"{saved[cost]:.1%} of the {cost}" for cost in wanted)
    asked = " and ".join(f"{one.share:.1%}" for one in wanted.values())
    said = f"The plan saves {goes} for a budget of {asked}"
    if not _enough(wanted, saved):
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
