"""Importances and allocations of a user's own, also named by import path on the command line."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from prunerecover.importance.context import WidthContext
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.plan.budget import Budget
from prunerecover.plan.groups import Group
from prunerecover.width.allocation.cost_model import CostModel


def first_stay(context: WidthContext) -> dict[str, Tensor]:
    """Units matter less and less."""
    return {group.name: torch.arange(group.size, 0, -1) for group in context.groups}


class Favourites:
    """Keeps units at a fixed interval."""

    def __init__(self, every: int) -> None:
        self.every = every

    def __call__(self, context: WidthContext) -> dict[str, Tensor]:
        return {g.name: (torch.arange(g.size) % self.every == 0).float() for g in context.groups}


def least_of_each(groups: Sequence[Group], scores: Scores, costs: CostModel, budget: Budget) -> dict[str, Tensor]:
    """The unit of least scores goes, from every group."""
    return {group.name: scores[group.name].argmin()[None] for group in groups}
