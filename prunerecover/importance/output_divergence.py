"""The default importance: how far the model's output moves when a unit is replaced. It needs no labels.

Each unit alone is replaced exactly as the plan would replace it, and the divergence from the dense output (KL on
logits, relative squared L2 otherwise) is measured on held-out calibration samples. The only importance here whose
values compare across kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from prunerecover.calibration.calibrator import Calibrator
from prunerecover.model.batches import split_batches
from prunerecover.model.evaluation import device_of, evaluating
from prunerecover.model.paths import unwrap
from prunerecover.plan.units import Unit


def output_divergence(
    model: nn.Module, units: Sequence[Unit], batches: Any, replace: str = "calibrated", seed: int = 0
) -> dict[str, float]:
    """Return each unit's divergence in nats (or relative squared L2). Higher means keep.

    Args:
        model: Judged in evaluation mode.
        units: Of any kind.
        batches: Calibration batches; every 4th sample is held out.
        replace: What units leave: "calibrated", "zero" or "identity".
        seed: Of the held-out split and of the labels drawn for token weights.
    """
    model = unwrap(model)
    samples = split_batches(batches, device_of(model), seed)
    with evaluating(model):
        return divergences(Calibrator(model, samples, units, replace, seed), units)


def divergences(calibrator: Calibrator, units: Sequence[Unit]) -> dict[str, float]:
    """The same with a calibrator that is there already."""
    choices = calibrator.score(units)
    return {unit.name: choices[unit.name].divergence for unit in units}
