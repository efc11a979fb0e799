"""The default importance: how far the model's output moves when a unit is replaced. It needs no labels.

Each unit alone is replaced exactly as the plan would replace it, and the divergence from the dense output (KL on
logits, relative squared L2 otherwise) is measured on held-out calibration samples. The only importance here whose
values compare across kinds.
"""

from __future__ import annotations

from prunerecover.importance.context import DepthContext, UnitScores
from prunerecover.model.evaluation import evaluating


def output_divergence(context: DepthContext) -> UnitScores:
    """Return each unit's divergence in nats (or relative squared L2), in evaluation mode. Higher means keep."""
    with evaluating(context.model):
        choices = context.calibrator.score(context.units)
    return {unit.name: choices[unit.name].divergence for unit in context.units}
