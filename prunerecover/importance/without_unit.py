"""Importances of the network without each unit: the divergence of the output, and the loss.

The output divergence is the default in depth, and needs no labels: KL on logits, relative squared L2 otherwise. Each
unit is removed alone, with its replacement as in the plan; scores compare across kinds.
"""

from __future__ import annotations

from prunerecover.importance.context import Context
from prunerecover.importance.measuring.losses import mean_loss
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.model.evaluation import evaluating


def output_divergence(context: Context) -> Scores:
    """Return the divergence of the output from the dense network's without each unit. Higher means keep."""
    with evaluating(context.model):
        return context.require_units("output_divergence").divergences()


def cross_entropy(context: Context) -> Scores:
    """Return the loss without each unit, mean over the samples. Higher means keep.

    Raises:
        ValueError: If there is no loss.
    """
    loss = context.require_loss("cross_entropy")
    depth = context.require_units("cross_entropy")
    return depth.each_without(lambda network, _: mean_loss(network, context.batches, loss))
