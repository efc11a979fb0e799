"""Importances by the names that `plan_depth` takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from prunerecover.importance.angular_distance import angular_distance
from prunerecover.importance.block_influence import block_influence
from prunerecover.importance.context import Loss, Request
from prunerecover.importance.gate_gradient import gate_gradient
from prunerecover.importance.magnitude import magnitude
from prunerecover.importance.output_divergence import divergences
from prunerecover.importance.random_scores import random
from prunerecover.importance.taylor import taylor

Scores = dict[str, float]


def _loss(request: Request) -> Loss:
    assert request.loss is not None, "plan_depth checks that a loss is there"
    return request.loss


IMPORTANCES: dict[str, Callable[[Request], Scores]] = {
    "output_divergence": lambda r: divergences(r.calibrator, r.units),
    "gate_gradient": lambda r: gate_gradient(r.model, r.units, r.batches, _loss(r), r.replace),
    "taylor": lambda r: taylor(r.model, r.units, r.batches, _loss(r)),
    "magnitude": lambda r: magnitude(r.model, r.units, r.batches),
    "angular_distance": lambda r: angular_distance(r.model, r.units, r.batches),
    "block_influence": lambda r: block_influence(r.model, r.units, r.batches),
    "random": lambda r: random(r.model, r.units, r.batches, r.seed),
}
NEED_LOSS = ("gate_gradient", "taylor")


def check_scores(scores: Mapping[str, float], importance: str) -> None:
    """Raise ValueError if an importance is NaN or infinite: sorting by it would choose at random.

    >>> check_scores({"blocks.0": 1.0}, "magnitude")
    """
    wrong = {name: value for name, value in scores.items() if not math.isfinite(value)}
    if wrong:
        found = ", ".join(f"{name}: {value}" for name, value in list(wrong.items())[:3])
        raise ValueError(
            f"Expected finite importances from '{importance}', but {len(wrong)} of {len(scores)} are not ({found}). "
            "Check the model's output on the calibration batches for NaN, and compute it in float32."
        )
