"""Registry of allocations by name; `plan_width` also takes callables.

An allocation chooses the removed units for a budget: any callable `(groups, scores, costs, budget) -> {group name:
numbers of the units that go}`. The result is checked for validity, but not against the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prunerecover.importance.measuring.names import check_new, kind_of_thing, name_of
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.plan.budget import Budget
from prunerecover.plan.groups import Group
from prunerecover.width.allocation.by_importance import global_ranking, per_cost, uniform
from prunerecover.width.allocation.cost_model import CostModel
from prunerecover.width.allocation.greedy_fill import Removed, allowed

AllocationRule = Callable[[Sequence[Group], Scores, CostModel, Budget], Mapping[str, Tensor]]


@dataclass(frozen=True)
class RegisteredAllocation:
    """An allocation by scores.

    Attributes:
        name: Name in plans and messages.
        rule: Function that returns the removed units; None: Tolerance of Difference, which weighs two importances.
    """

    name: str
    rule: AllocationRule | None

    def __call__(self, groups: Sequence[Group], scores: Scores, costs: CostModel, budget: Budget) -> Removed:
        """Return the removed units, ascending, by the name of every group.

        Raises:
            ValueError: If the rule names an unknown group, or units outside the group or its limits.
            TypeError: If the rule returns no mapping of integers.
        """
        assert self.rule is not None, "Tolerance of Difference is computed by `tolerance_allocation`"
        found = self.rule(groups, scores, costs, budget)
        if not isinstance(found, Mapping):
            raise TypeError(
                f"Expected allocation '{self.name}' to return {{group name: units that go}}, but got "
                f"{type(found).__name__}."
            )
        unknown = [name for name in found if name not in {group.name for group in groups}]
        if unknown:
            raise ValueError(
                f"Expected allocation '{self.name}' to return units of the groups that it is given, such as "
                f"'{groups[0].name}', but got '{unknown[0]}'."
            )
        return {group.name: self._units(group, found.get(group.name, ())) for group in groups}

    def _units(self, group: Group, found: Any) -> Tensor:
        """Return the checked numbers of a group's removed units."""
        try:
            units = torch.as_tensor(found).cpu()
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"Expected allocation '{self.name}' to return the numbers of the units of '{group.name}' that go, "
                f"integers of shape (k,), but got {type(found).__name__}."
            ) from None
        if not units.numel():
            return torch.empty(0, dtype=torch.long)
        if units.ndim != 1 or units.is_floating_point() or units.is_complex() or units.dtype == torch.bool:
            raise TypeError(
                f"Expected allocation '{self.name}' to return the numbers of the units of '{group.name}' that go, "
                f"integers of shape (k,), but got {units.dtype} of shape {tuple(units.shape)}."
            )
        units = units.long()
        if int(units.min()) < 0 or int(units.max()) >= group.size or not bool((units.diff() > 0).all()):
            raise ValueError(
                f"Expected allocation '{self.name}' to return numbers of units of '{group.name}' from 0 to "
                f"{group.size - 1}, ascending and each once, but got {_told(units)}."
            )
        if allowed(group, len(units)) != len(units):
            raise ValueError(
                f"Expected allocation '{self.name}' to leave '{group.name}' at least {group.at_least} of its "
                f"{group.size} units and a multiple of {group.multiple}, but {group.size - len(units)} would stay. "
                "Use greedy_fill.allowed(group, count) for how many may go."
            )
        counts = units.div(group.size // group.strata, rounding_mode="floor").bincount(minlength=group.strata)
        if int(counts.min()) != int(counts.max()):
            raise ValueError(
                f"Expected allocation '{self.name}' to take equally many units of '{group.name}' out of each of its "
                f"{group.strata} strata, but got {counts.tolist()}. Use by_importance.lowest(groups, scores, counts)."
            )
        return units


ALLOCATIONS = {
    entry.name: entry
    for entry in (
        RegisteredAllocation("per_cost", per_cost),
        RegisteredAllocation("fair_pruner", None),
        RegisteredAllocation("uniform", uniform),
        RegisteredAllocation("global", global_ranking),
    )
}


def register_allocation(name: str, rule: AllocationRule) -> RegisteredAllocation:
    """Register a rule under a name for `allocation=name` in `plan_width`, `WidthPrune` and recipes.

    Args:
        name: New name.
        rule: Function `(groups, scores, costs, budget) -> {group name: numbers of the units that go}`, a tensor of
            integers per group, ascending; unnamed groups keep all. `scores` are those of the importance, `(size,)` by
            group name; `costs` holds the savings of units; see `per_cost`.

    Raises:
        ValueError: If the name belongs to another allocation.
        TypeError: If the name is empty or no string, or `rule` is no callable.
    """
    check_new("allocation", name, rule)
    if name in ALLOCATIONS and ALLOCATIONS[name].rule is not rule:
        raise ValueError(f"Expected a name that no allocation has, but '{name}' is taken. Choose another.")
    ALLOCATIONS[name] = RegisteredAllocation(name, rule)
    return ALLOCATIONS[name]


def allocation_of(allocation: str | AllocationRule) -> RegisteredAllocation:
    """Return the entry of a name, or a new entry for a callable.

    Raises:
        ValueError: If no allocation has the name.
        TypeError: If the argument is neither a name nor a callable.
    """
    if isinstance(allocation, RegisteredAllocation):
        return allocation
    if isinstance(allocation, str):
        if allocation not in ALLOCATIONS:
            raise ValueError(
                f"Expected allocation among {', '.join(ALLOCATIONS)}, or a callable (groups, scores, costs, budget) "
                f"-> {{group name: units that go}}, but got '{allocation}'."
            )
        return ALLOCATIONS[allocation]
    if not callable(allocation) or isinstance(allocation, type):
        raise TypeError(
            "Expected allocation to be a name or a callable (groups, scores, costs, budget) -> {group name: units "
            f"that go}}, but got {kind_of_thing(allocation)}."
        )
    return RegisteredAllocation(name_of(allocation), allocation)


def _told(units: Tensor) -> str:
    return f"[{', '.join(map(str, units[:8].tolist()))}{', ...' if len(units) > 8 else ''}]"
