"""The context that an importance is computed in: model, units, calibration batches, loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from prunerecover.plan.units import Unit

if TYPE_CHECKING:
    from prunerecover.calibration.calibrator import Calibrator

Loss = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True)
class Request:
    """One question: how much do these units matter?

    Attributes:
        model: Unwrapped, in evaluation mode.
        units: What is judged.
        batches: Calibration batches as the user gave them, labels included.
        calibrator: Fits and judges stand-ins on the same samples.
        loss: `loss(model, batch) -> scalar`, or None.
        seed: Of everything random.
        replace: What removed units leave; see `plan_depth`.
    """

    model: nn.Module
    units: Sequence[Unit]
    batches: Sequence[Any]
    calibrator: Calibrator
    loss: Loss | None = None
    seed: int = 0
    replace: str = "calibrated"
