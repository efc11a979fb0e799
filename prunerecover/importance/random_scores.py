"""Importances drawn at random: the control that every other importance has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from prunerecover.plan.units import Unit


def random(model: nn.Module, units: Sequence[Unit], batches: Any = (), seed: int = 0) -> dict[str, float]:
    """Draw an importance between 0 and 1 for every unit; the global random state is not touched.

    >>> unit = Unit("blocks.0", "block", ("blocks.0",), 0)
    >>> random(nn.Identity(), [unit], seed=1) == random(nn.Identity(), [unit], seed=1)
    True
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(len(units), generator=generator, dtype=torch.float64).tolist()
    return dict(zip((u.name for u in units), drawn, strict=True))
