"""Importances drawn at random: the control that every other importance has to beat."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prunerecover.importance.context import DepthContext, UnitScores
from prunerecover.plan.units import Unit


def random(context: DepthContext) -> UnitScores:
    """Draw an importance between 0 and 1 for every unit; the global random state is not touched.

    >>> from torch import nn
    >>> from prunerecover.plan.units import Unit
    >>> context = DepthContext(model=nn.Identity(), units=[Unit("blocks.0", "block", ("blocks.0",), 0)], seed=1)
    >>> random(context) == random(context)
    True
    """
    return draw(context.units, context.seed)


def draw(units: Sequence[Unit], seed: int) -> UnitScores:
    """Draw a number between 0 and 1 for each of some units."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(len(units), generator=generator, dtype=torch.float64).tolist()
    return dict(zip((unit.name for unit in units), drawn, strict=True))
