"""Importances drawn at random: the control that every other importance has to beat."""

from __future__ import annotations

import torch

from prunerecover.importance.context import DepthContext, UnitScores


def random(context: DepthContext) -> UnitScores:
    """Draw an importance between 0 and 1 for every unit; the global random state is not touched.

    >>> from torch import nn
    >>> from prunerecover.plan.units import Unit
    >>> context = DepthContext(model=nn.Identity(), units=[Unit("blocks.0", "block", ("blocks.0",), 0)], seed=1)
    >>> random(context) == random(context)
    True
    """
    generator = torch.Generator().manual_seed(context.seed)
    drawn = torch.rand(len(context.units), generator=generator, dtype=torch.float64).tolist()
    return dict(zip((u.name for u in context.units), drawn, strict=True))
