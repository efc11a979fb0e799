"""Latency budgets: the budget of MACs that saves a share of the measured latency, by bisection.

Processors compute in blocks, so that widths which fill them are faster at the same MACs, or as fast with more units.
How much that brings depends on the machine, so both are tried: units one by one, and in blocks. The way stays by which
less importance goes.
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
from prunerecover.width.allocation.greedy_fill import Removed

Way = TypeVar("Way")
STEPS = 7
STEP = MOST / 2**STEPS  # two budgets that are tried differ by as much, and so does about the latency


@dataclass(frozen=True)
class Choices(Generic[Way]):
    """How units are chosen.

    Attributes:
        removed: Returns what goes by a way and a budget of MACs; a ValueError says that so much cannot go.
        edits: Returns the edits that take it out.
        lost: Returns the sum of its scores.
    """

    removed: Callable[[Way, Budget], Removed]
    edits: Callable[[Removed], Sequence[Edit]]
    lost: Callable[[Removed], float]


@dataclass(frozen=True)
class Met(Generic[Way]):
    """A way to choose units by which a latency is met.

    Attributes:
        way: How units are chosen.
        budget: Of MACs, that meets it.
        lost: Saliency of the units that go.
    """

    way: Way
    budget: Budget
    lost: float


def met_latency(dense: DenseCost, latency: float, ways: Sequence[Way], choices: Choices[Way]) -> Met[Way]:
    """Return the way by which the least importance goes for a share of the latency, and its budget of MACs.

    Budgets are compared on few samples; what the one that is found saves is measured on the whole batch, and another
    share is planned for if that is not enough, or clearly too much. Where few samples say too little of the whole batch
    (those that fill no GPU), budgets are compared on that.

    Args:
        dense: The latency of the model, on its device.
        latency: The share that has to go, in (0, 1).
        ways: To choose units; the first one stays if others are no better.
        choices: What goes by each.

    Raises:
        ValueError: If the latency cannot be met by any way.
    """

    def meet(on: DenseCost, share: float) -> Met[Way]:
        return cheapest(ways, lambda way, less_than: _met(on, share, way, choices, less_than))

    def saved(met: Met[Way]) -> dict[str, float]:
        edits = choices.edits(choices.removed(met.way, met.budget))
        return {"latency": dense.removed_share(edits, wanted=latency)}

    few = dense.on_few
    if few is not dense:
        with suppress(ValueError), warnings.catch_warnings():
            warnings.simplefilter("ignore", BudgetMissed)  # on the whole batch: that is tried then
            wanted = Wanted(latency, below=CLOCKS, above=CLOCKS + STEP)
            best, shares = met_share({"latency": wanted}, lambda asked: meet(few, asked["latency"]), saved)
            if shares["latency"] >= latency - CLOCKS:
                return best
    return meet(dense, latency)


def _met(dense: DenseCost, latency: float, way: Way, choices: Choices[Way], less_than: float) -> Met[Way]:
    """Meet a latency by one way, with less importance than a number."""

    def edits_at(budget: Budget) -> Sequence[Edit]:
        removed = choices.removed(way, budget)
        if (lost := choices.lost(removed)) >= less_than:
            raise ValueError(f"Expected less importance than {less_than} to go, but got {lost}.")
        return choices.edits(removed)

    macs = macs_for_latency(dense, latency, edits_at)
    return Met(way, macs, choices.lost(choices.removed(way, macs)))


def cheapest(ways: Sequence[Way], meet: Callable[[Way, float], Met[Way]]) -> Met[Way]:
    """Return the way by which the least importance goes.

    Args:
        ways: To choose units; the first one stays if others are no better.
        meet: Meets the latency by a way, with less importance than a number: what loses more need not be measured. A
            ValueError says that it cannot be met so.

    Raises:
        ValueError: If it cannot be met by any; that of the first.
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


def macs_for_latency(dense: DenseCost, latency: float, edits_at: Callable[[Budget], Sequence[Edit]]) -> Budget:
    """Return the least budget of MACs that was tried and saves a share of the latency.

    Args:
        dense: The latency of the model.
        latency: The share that has to go, in (0, 1).
        edits_at: Returns the edits of a budget; a ValueError says that so much cannot go.

    Raises:
        ValueError: If no budget of MACs that was tried saves as much.
    """
    low, high, most = 0.0, MOST, 0.0
    met: float | None = None
    with progress("measuring latency", STEPS) as advance:
        for _ in range(STEPS):
            advance()
            middle = (low + high) / 2
            try:
                edits = edits_at(Budget(macs=middle))
            except ValueError:
                high = middle
                continue
            saved = dense.removed_share(edits, wanted=latency)
            most = max(most, saved)
            if saved >= latency:
                high = met = middle
            else:
                low = middle
    if met is None:
        raise ValueError(
            f"Expected a budget that the groups can meet, {latency:.1%} of the latency, but the most that was "
            f"saved is {most:.1%}. Lower the budget, or ignore fewer groups."
        )
    return Budget(macs=met)
