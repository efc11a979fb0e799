"""Take ranked units in turn by a pattern: two that are no attention, then an attention, and so on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from prunerecover.depth.search.goals import Goal
from prunerecover.plan.units import Unit


def in_turn(
    pattern: Sequence[Callable[[Unit], bool]],
    ranked: Sequence[Unit],
    goal: Goal,
    can_go: Callable[[Sequence[Unit]], bool] = lambda _: True,
) -> list[Unit]:
    """Take units in turn until the goal is met; one that cannot go with those before it is passed over.

    Args:
        pattern: Which units each place takes.
        ranked: The least important first.
        goal: How much has to go.
        can_go: Whether units can go together.

    Raises:
        ValueError: If the goal cannot be met.
    """
    chosen: list[Unit] = []
    while goal.reached(chosen) < 1:
        before = len(chosen)
        for takes in pattern:
            if goal.reached(chosen) >= 1:
                break
            open_ = [unit for unit in goal.open(chosen) if goal.price((unit,)) > 0]
            able = (unit for unit in ranked if unit in open_ and takes(unit) and can_go([*chosen, unit]))
            chosen += list(islice(able, 1))
        if len(chosen) == before:
            raise ValueError(
                f"Expected enough units for {goal.describe_missing(chosen)} more, but none is left that can go. Lower "
                "the budget."
            )
    return chosen
