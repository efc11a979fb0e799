"""Signals that need no data: the size of the weights, and chance."""

from __future__ import annotations

import torch

from prunerecover.model.paths import unwrap
from prunerecover.width.groups.unit_slices import Scores, check_names, made_parameters, sum_per_unit
from prunerecover.width.signals.context import WidthContext


def magnitude(context: WidthContext) -> Scores:
    """Score units by the L2 norm of all weights that make them (Li et al. 2017 use L1). High means keep."""
    groups = context.groups
    check_names(groups)
    made = made_parameters(unwrap(context.model), groups)
    squares = {name: p.detach().double().square() for name, p in made.items()}
    return {group.name: sum_per_unit(group, squares).sqrt() for group in groups}


def random(context: WidthContext) -> Scores:
    """Draw a score between 0 and 1 for every unit, the control for all others; the global state is not touched."""
    check_names(context.groups)
    generator = torch.Generator().manual_seed(context.seed)
    return {group.name: torch.rand(group.size, generator=generator, dtype=torch.float64) for group in context.groups}
