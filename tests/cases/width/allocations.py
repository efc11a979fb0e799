"""Networks with costs, drawn scores, and the units that an allocation removes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from cases.models.hand_made_groups import ResNet, resnet_groups, small_resnet
from torch import Tensor

from prunerecover.plan.budget import Budget
from prunerecover.plan.groups import Group
from prunerecover.width.allocation.by_importance import global_ranking, per_cost, uniform
from prunerecover.width.allocation.cost_model import CostModel, cost_model
from prunerecover.width.allocation.tolerance_allocation import tolerance_allocation

RULES = {"per_cost": per_cost, "global_ranking": global_ranking, "uniform": uniform}
SHARES = (0.05, 0.3, 0.8)
Network = tuple[tuple[Group, ...], CostModel]


@cache
def resnet20() -> Network:
    model = ResNet().to("meta")
    groups = resnet_groups(model)
    return groups, cost_model(model, groups, torch.zeros(1, 3, 32, 32, device="meta"))


@cache
def small() -> Network:
    model = small_resnet()
    groups = resnet_groups(model)
    return groups, cost_model(model, groups, torch.zeros(1, 3, 8, 8))


def drawn(groups: tuple[Group, ...], seed: int = 0) -> dict[str, Tensor]:
    """Draw scores whose scale differs between groups, as in real ones."""
    generator = torch.Generator().manual_seed(seed)
    return {
        g.name: torch.rand(g.size, generator=generator, dtype=torch.float64) * 4 ** torch.rand(1, generator=generator)
        for g in groups
    }


def agreeing(groups: tuple[Group, ...], seed: int = 0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Draw a removal and a protection score that agree in part."""
    removal, noise = drawn(groups, seed), drawn(groups, seed + 1)
    return removal, {name: scores + 0.5 * noise[name] for name, scores in removal.items()}


def allocate(rule: str, groups: tuple[Group, ...], costs: CostModel, budget: Budget) -> dict[str, Tensor]:
    if rule == "fair_pruner":
        return tolerance_allocation(groups, *agreeing(groups), budget=budget, costs=costs).removed
    return RULES[rule](groups, drawn(groups), costs, budget)


def gone(removed: Mapping[str, Tensor]) -> dict[str, int]:
    return {name: len(units) for name, units in removed.items()}


def share_gone(network: Network, removed: Mapping[str, Tensor], what: str) -> float:
    groups, costs = network
    kept = {g.name: g.size - len(removed[g.name]) for g in groups}
    return 1 - getattr(costs.total(kept), what) / getattr(costs.full, what)
