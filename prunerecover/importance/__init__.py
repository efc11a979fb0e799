"""How much each unit matters: higher means keep.

Every importance is a plain function `(model, units, batches) -> {unit name: importance}` that leaves the model bit
for bit as it was (parameters, buffers, random state, train or eval mode). `IMPORTANCES` lists them by the name that
`plan_depth` takes.
"""

from prunerecover.importance.angular_distance import angular_distance
from prunerecover.importance.block_influence import block_influence
from prunerecover.importance.gate_gradient import gate_gradient
from prunerecover.importance.magnitude import magnitude
from prunerecover.importance.output_divergence import output_divergence
from prunerecover.importance.random import random
from prunerecover.importance.registry import IMPORTANCES, NEED_LOSS, check_scores
from prunerecover.importance.request import Request
from prunerecover.importance.taylor import taylor

__all__ = [
    "IMPORTANCES",
    "NEED_LOSS",
    "Request",
    "angular_distance",
    "block_influence",
    "check_scores",
    "gate_gradient",
    "magnitude",
    "output_divergence",
    "random",
    "taylor",
]
