"""Importance by how much a unit changes the direction of the residual stream.

ShortGPT (Men et al. 2024, arXiv 2403.03853): BI = 1 - E[cos(x_l, x_{l+1})], for blocks; here also for single branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from prunerecover.importance.residual import mean_over_tokens
from prunerecover.plan.units import Unit


def block_influence(model: nn.Module, units: Sequence[Unit], batches: Sequence[Any]) -> dict[str, float]:
    """Return 1 - mean cosine of the residual stream before and after each unit, 0 to 2. Higher means keep."""
    return mean_over_tokens(model, units, batches, lambda cosine: 1 - cosine, "block_influence")
