"""Refusals of planning in width that no score changes: ignored names, and budgets beyond the share that can go."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from prunerecover.display.progress import progress
from prunerecover.model.batches import ModelInputs
from prunerecover.plan.budget import Budget
from prunerecover.width.allocation.by_importance import global_ranking, per_cost, uniform
from prunerecover.width.allocation.equal_layers import equalised
from prunerecover.width.arguments import WidthConfig
from prunerecover.width.groups.rounding import rounded
from prunerecover.width.planner import WidthPlanner


def check_feasible(
    model: nn.Module,
    batches: Sequence[ModelInputs],
    budget: Budget | None,
    config: WidthConfig,
    *,
    names_only: bool = False,
) -> None:
    """Raise what `plan_width` would raise before anything is scored; the model is bit-identical afterwards.

    Latency is not measured, and what a callable allocates is not known.

    Args:
        model: See `plan_width`.
        batches: At least one; the first sample is run.
        budget: None: the tolerance says how much goes.
        config: All other arguments of `plan_width`.
        names_only: Leave how much goes out, and check names and kinds of groups.

    Raises:
        ValueError: If the model has no groups, a pattern in `ignore` matches none, or the budget cannot be met.
    """
    config = config.for_budget(budget)
    with progress("checking the budget"):
        planner = WidthPlanner(model, batches=batches, config=config)
        rule = per_cost if config.by_tolerance else config.allocated_by.rule
        if (
            names_only
            or budget is None
            or budget.latency is not None
            or rule not in (per_cost, global_ranking, uniform)
        ):
            return
        groups = rounded(planner.groups, config.round_to)
        alike = {group.name: torch.ones(group.size, dtype=torch.float64) for group in groups}
        removed = rule(groups, alike, planner.costs, budget)
        if config.equal_layers:
            equalised(groups, removed, planner.costs, budget)
