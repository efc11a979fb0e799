"""Importances of units found on the graph, by name."""

from __future__ import annotations

from collections.abc import Callable

from prunerecover.depth.layers.angles import angular_distance
from prunerecover.depth.layers.scoring import GraphContext, Scores
from prunerecover.depth.layers.weights import magnitude, taylor
from prunerecover.importance.losses import mean_loss
from prunerecover.importance.random_scores import draw
from prunerecover.model.evaluation import evaluating
from prunerecover.plan.units import Unit


def output_divergence(context: GraphContext) -> Scores:
    """How far the output is from the dense network's without each unit."""
    scores = context.variants.scores(context.gone, [(unit,) for unit in context.units])
    return {unit.name: score for unit, score in zip(context.units, scores, strict=True)}


def cross_entropy(context: GraphContext) -> Scores:
    """The loss without each unit, mean over the samples."""
    assert context.loss is not None
    loss = context.loss

    def without(unit: Unit) -> float:
        network, _ = context.without(unit)
        with evaluating(network):
            return mean_loss(network, context.batches, loss)

    return context.score_each(without)


def random(context: GraphContext) -> Scores:
    """Draw numbers."""
    return draw(context.units, context.seed)


IMPORTANCES: dict[str, Callable[[GraphContext], Scores]] = {
    "output_divergence": output_divergence,
    "taylor": taylor,
    "magnitude": magnitude,
    "random": random,
    "cross_entropy": cross_entropy,
    "angular_distance": angular_distance,
}
BY_PARTS = ("block_influence", "gate_gradient")  # read the parts of blocks, which the graph does not tell
