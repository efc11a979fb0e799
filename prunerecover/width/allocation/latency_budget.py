"""Latency budgets: the budget of MACs for a share of the measured latency, by bisection.

Processors compute in blocks: widths in whole blocks are faster at the same MACs, or as fast with more units. The gain
depends on the machine, and both ways are tried: single units, and blocks. The way with the least removed importance is
kept.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from prunerecover.cost.met_share import MOST, BudgetMissed, Wanted, met_share
from prunerecover.display.progress import progress
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Edit
from prunerecover.surgery.saved_cost import CLOCKS, DenseCost

Way = TypeVar("Way")
Chosen = tuple[Sequence[Edit], float]  # edits, and importance of the removed units
STEPS = 7
STEP = MOST / 2**STEPS  # difference between tried budgets, and about the difference in latency


@dataclass(frozen=True)
class Met(Generic[Way]):
    """A way to choose units, with a budget for a latency.

    Attributes:
        way: Way to choose units.
        budget: Budget of MACs for the latency.
        lost: Importance of the removed units.
    """

    way: Way
    budget: Budget
    lost: float


def met_latency(
    dense: DenseCost, latency: float, ways: Sequence[Way], choose: Callable[[Way, Budget], Chosen]
) -> Met[Way]:
    """Return the way with the least removed importance for a share of the latency, and its budget of MACs.

    Budgets are compared on few samples. The saving of the found budget is measured on the whole batch, and another
    share is planned for if the saving is too small or clearly too large. If few samples represent the whole batch
    poorly (samples that fill no GPU), budgets are compared on the whole batch.

    Args:
        dense: Latency of the model, on its device.
        latency: Share to remove, in (0, 1).
        ways: Ways to choose units; the first is kept unless another is better.
        choose: Function from a way and a budget of MACs to the edits, and the sum of the scores of the removed units;
            raises ValueError for a budget out of reach.

    Raises:
        ValueError: If no way meets the latency.
    """

    def meet(on: DenseCost, share: float) -> Met[Way]:
        return cheapest(ways, lambda way, less_than: _met(on, share, way, choose, less_than))

    def saved(met: Met[Way]) -> dict[str, float]:
        return {"latency": dense.removed_share(choose(met.way, met.budget)[0], wanted=latency)}

    few = dense.on_few
    if few is not dense:
        with suppress(ValueError), warnings.catch_warnings():
            warnings.simplefilter("ignore", BudgetMissed)  # the whole batch is tried next
            wanted = Wanted(latency, below=CLOCKS, above=CLOCKS + STEP)
            best, shares = met_share({"latency": wanted}, lambda asked: meet(few, asked["latency"]), saved)
            if shares["latency"] >= latency - CLOCKS:
                return best
    return meet(dense, latency)


def cheapest(ways: Sequence[Way], meet: Callable[[Way, float], Met[Way]]) -> Met[Way]:
    """Return the way with the least removed importance.

    Args:
        ways: Ways to choose units; the first is kept unless another is better.
        meet: Function from a way and a limit of removed importance to the met latency; plans above the limit need not
            be measured. Raises ValueError if the latency cannot be met.

    Raises:
        ValueError: If no way meets the latency; the error of the first way.
    """
    best: Met[Way] | None = None
    refusals: list[ValueError] = []
    for way in ways:
        try:
            found = meet(way, math.inf if best is None else best.lost)
        except ValueError as refusal:
            refusals.append(refusal)
            continue
        best = found if best is None or found.lost < best.lost else best
    if best is None:
        raise refusals[0]
    return best


def _met(
    dense: DenseCost, latency: float, way: Way, choose: Callable[[Way, Budget], Chosen], less_than: float
) -> Met[Way]:
    """Return the least tried budget of MACs that saves a share of the latency by a way.

    Args:
        dense: Latency of the model.
        latency: Share to remove, in (0, 1).
        way: Way to choose units.
        choose: Function from a way and a budget to edits and lost importance, as in `met_latency`.
        less_than: Limit of lost importance; plans at the limit are not measured.

    Raises:
        ValueError: If no tried budget of MACs saves the share.
    """
    low, high, most = 0.0, MOST, 0.0
    met: Met[Way] | None = None
    with progress("measuring latency", STEPS) as advance:
        for _ in range(STEPS):
            advance()
            middle = (low + high) / 2
            budget = Budget(macs=middle)
            try:
                edits, lost = choose(way, budget)
            except ValueError:
                lost = math.inf
            if lost >= less_than:
                high = middle
                continue
            saved = dense.removed_share(edits, wanted=latency)
            most = max(most, saved)
            if saved >= latency:
                high, met = middle, Met(way, budget, lost)
            else:
                low = middle
    if met is None:
        raise ValueError(
            f"Expected a budget that the groups can meet, {latency:.1%} of the latency, but the most that was "
            f"saved is {most:.1%}. Lower the budget, or ignore fewer groups."
        )
    return met
