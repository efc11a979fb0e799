"""Choice of ranked units in turn by a pattern, such as two units besides attentions for each attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prunerecover.depth.search.goals import Goal, not_enough
from prunerecover.plan.units import Unit


def in_turn(
    pattern: Sequence[Callable[[Unit], bool]],
    ranked: Sequence[Unit],
    goal: Goal,
    why_not: Callable[[Sequence[Unit]], str],
) -> list[Unit]:
    """Take units in turn until the goal is met, passing over units that cannot go with the chosen units.

    Args:
        pattern: Conditions of units, by place.
        ranked: Units, the least important first.
        goal: Amount to remove.
        why_not: Function that returns why units cannot go together; empty if removable.

    Raises:
        ValueError: If the goal cannot be met.
    """
    chosen, reason = list[Unit](), ""
    while goal.reached(chosen) < 1:
        before = len(chosen)
        for takes in pattern:
            if goal.reached(chosen) >= 1:
                break
            open_ = [unit for unit in goal.open(chosen) if goal.price((unit,)) > 0]
            for unit in (unit for unit in ranked if unit in open_ and takes(unit)):
                refused = why_not([*chosen, unit])
                if not refused:
                    chosen.append(unit)
                    break
                reason = f"{refused} "
        if len(chosen) == before:
            raise not_enough(goal, chosen, reason)
    return chosen
