"""Signals that need no data: the size of the weights, and chance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from prunerecover.model.paths import unwrap
from prunerecover.plan.groups import Group
from prunerecover.width.groups.unit_slices import Scores, check_names, made_parameters, sum_per_unit


def magnitude(model: nn.Module, groups: Sequence[Group]) -> Scores:
    """Score units by the L2 norm of all weights that make them (Li et al. 2017 use L1). High means keep."""
    check_names(groups)
    squares = {name: p.detach().double().square() for name, p in made_parameters(unwrap(model), groups).items()}
    return {group.name: sum_per_unit(group, squares).sqrt() for group in groups}


def random(groups: Sequence[Group], seed: int = 0) -> Scores:
    """Draw a score between 0 and 1 for every unit, the control for all others; the global state is not touched."""
    check_names(groups)
    generator = torch.Generator().manual_seed(seed)
    return {group.name: torch.rand(group.size, generator=generator, dtype=torch.float64) for group in groups}
