"""Importance by the angle that a unit turns the residual stream.

Gromov et al. 2024 (arXiv 2403.17887): arccos(cos(x_l, x_{l+1})) / pi. They take the last token of runs of blocks
(`plan_depth(..., search="run")` does); here it is the mean over all tokens of single units, because a classifier may
read any of them.
"""

from __future__ import annotations

import math

from prunerecover.importance.context import DepthContext, UnitScores
from prunerecover.importance.residual import mean_over_tokens


def angular_distance(context: DepthContext) -> UnitScores:
    """Return the mean angle, in units of pi, between the residual stream before and after. Higher means keep."""
    return mean_over_tokens(context, lambda cosine: cosine.arccos() / math.pi, "angular_distance")
