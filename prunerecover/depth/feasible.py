"""What planning in depth would refuse whatever units score: budgets in a share of cost beyond what can go."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch

import torch
from torch import nn

from prunerecover.depth.arguments import GRAPH_SEARCHES, DepthConfig
from prunerecover.depth.graph_planner import units_that_may_go
from prunerecover.depth.search import count_by_kind, saving_if_left
from prunerecover.depth.selection import by_cost, check_comparable, check_reached, outermost
from prunerecover.depth.units import find_units
from prunerecover.display.progress import progress
from prunerecover.families.describe import is_supported
from prunerecover.model.batches import ModelInputs
from prunerecover.model.evaluation import device_of, evaluating, ordinary_arithmetic, uncompiled
from prunerecover.plan.budget import Budget
from prunerecover.plan.kinds import FAMILY_KINDS, GRAPH_KINDS
from prunerecover.surgery.saved_cost import DenseCost


def check_feasible(model: nn.Module, inputs: ModelInputs, budget: Budget, config: DepthConfig) -> None:
    """Raise what `plan_depth` would raise before anything is scored; the model is bit-identical afterwards.

    Args:
        model: Unwrapped.
        inputs: One batch; the first sample is run.
        budget: In a share of the MACs or parameters; of others, only what the graph shows is looked at.
        config: All other arguments of `plan_depth`.

    Raises:
        ValueError: If the budget cannot be met, or needs an importance that compares across kinds.
    """
    known = is_supported(model)
    kinds = budget.kinds(config.kinds or (FAMILY_KINDS if known else GRAPH_KINDS))
    if not known or "layer" in kinds or config.search in GRAPH_SEARCHES:
        _check_units(model, inputs, budget, kinds, config)
        return
    if budget.share is None or budget.share[0] == "latency":
        return
    cost, share = budget.share
    with progress("checking the budget"), ordinary_arithmetic(), evaluating(model), uncompiled():
        example = inputs.select(torch.tensor([0])).to(device_of(model))
        found = find_units(model, kinds, example)
        units = [unit for unit in found if not any(fnmatch(unit.name, pattern) for pattern in config.ignore)]
        check_comparable(units, config.registered)
        order = by_cost(units, {unit.name: 1.0 for unit in units}, cost)  # the cheapest block stays: the most can go
        check_reached(
            order, cost, share, saving_if_left(DenseCost(model, cost, example, config.seed), {})(outermost(order))
        )


def _check_units(
    model: nn.Module, inputs: ModelInputs, budget: Budget, kinds: Sequence[str], config: DepthConfig
) -> None:
    with progress("checking the budget"), ordinary_arithmetic(), evaluating(model), uncompiled():
        example = inputs.select(torch.tensor([0])).to(device_of(model))
        _, units = units_that_may_go(model, example, kinds, config)
    if budget.in_units:
        budget.counts(count_by_kind(units))
