"""Groups with a place for gates: at a module that reads the units, or at a visible sum."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from prunerecover.plan.groups import Group


def with_a_gate(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return the groups with a place for gates, and warn of the rest; all groups if no group has one."""
    kept = tuple(group for group in groups if group.taps)
    left_out = [group.name for group in groups if not group.taps]
    if not kept or not left_out:
        return tuple(groups)
    more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
    warnings.warn(
        f"{', '.join(left_out[:3])}{more} stay as they are: their units have no place where 'gate_taylor' could gate "
        "them. Use importance='magnitude' to narrow them, too, or name them in ignore=.",
        stacklevel=2,
    )
    return kept
