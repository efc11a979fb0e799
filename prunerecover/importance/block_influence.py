"""Importance by how much a unit changes the direction of the residual stream.

ShortGPT (Men et al. 2024, arXiv 2403.03853): BI = 1 - E[cos(x_l, x_{l+1})], for blocks; here also for single branches.
"""

from __future__ import annotations

from prunerecover.importance.context import DepthContext, UnitScores
from prunerecover.importance.residual import mean_over_tokens


def block_influence(context: DepthContext) -> UnitScores:
    """Return 1 - mean cosine of the residual stream before and after each unit, 0 to 2. Higher means keep."""
    return mean_over_tokens(context, lambda cosine: 1 - cosine, "block_influence")
