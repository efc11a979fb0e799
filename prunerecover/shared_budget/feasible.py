"""Refusals of planning depth and width for one budget that no score changes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import nn

from prunerecover.depth.feasible import check_feasible as check_depth
from prunerecover.model.batches import ModelInputs
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.shared_budget.arguments import SharedBudgetConfig, check_share
from prunerecover.shared_budget.planner import SharedBudgetPlanner
from prunerecover.width.feasible import check_feasible as check_width


def check_feasible(
    model: nn.Module,
    batches: Sequence[ModelInputs],
    budget: Budget,
    config: SharedBudgetConfig,
    *,
    names_only: bool = False,
) -> None:
    """Raise what `plan_pruning` would raise before anything is scored; the model is bit-identical afterwards.

    What depth and width can save together is not known without planning both: a budget is checked where one alone goes.

    Args:
        model: See `plan_pruning`.
        batches: At least one; the first sample is run.
        budget: A share of a cost; latency is not measured.
        config: All other arguments of `plan_pruning`.
        names_only: Leave how much goes out.

    Raises:
        ValueError: If nothing can go, a pattern in `ignore` matches nothing, or the budget cannot be met.
    """
    with warnings.catch_warnings():  # of a single batch, which nothing is planned on
        warnings.simplefilter("ignore")
        planner = SharedBudgetPlanner(model, check_share(budget)[0], batches, config)
        if names_only:
            return
        if planner.why_no_depth:
            check_width(planner.model, batches, budget, planner.width_config(Plan()))
        elif planner.why_no_width:
            check_depth(planner.model, batches[0], budget, planner.depth_config)
