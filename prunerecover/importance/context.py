"""The context that an importance is computed in: model, units, calibration batches, loss.

An importance is any callable `(context) -> {name: importance}`, higher means keep. It leaves the model bit for bit as
it was: parameters, buffers, random state, train or eval mode. Depth passes a `DepthContext` and takes a number per
unit; width passes a context with groups, and takes a tensor with one number per unit of each group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from prunerecover.calibration.calibrator import Calibrator
from prunerecover.model.batches import split_batches
from prunerecover.model.evaluation import device_of, evaluating
from prunerecover.plan.units import Unit

Loss = Callable[[nn.Module, Any], Tensor]
UnitScores = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Context:
    """A model and the data to score it on.

    Attributes:
        model: Unwrapped.
        batches: Calibration batches as the user gave them, labels included.
        loss: `loss(model, batch) -> scalar`, a mean over the batch; None if there is none.
        seed: Of everything random.
    """

    model: nn.Module
    batches: Sequence[Any] = ()
    loss: Loss | None = None
    seed: int = 0

    def require_loss(self, name: str) -> Loss:
        """Return the loss.

        Args:
            name: Of the importance that needs it, for the message.

        Raises:
            ValueError: If there is none.
        """
        if self.loss is None:
            raise ValueError(
                f"Expected argument loss=f(model, batch) for importance='{name}', but got none. "
                "The default, 'output_divergence', needs no labels."
            )
        return self.loss


@dataclass(frozen=True, kw_only=True)
class DepthContext(Context):
    """Units of depth to score: blocks, attentions, MLPs and activations.

    Attributes:
        units: To score, in order of depth.
        replace: What removed units leave; see `plan_depth`.
        shared_calibrator: One that is there already for these units; None: see `calibrator`.
    """

    units: Sequence[Unit]
    replace: str = "calibrated"
    shared_calibrator: Calibrator | None = None

    @cached_property
    def calibrator(self) -> Calibrator:
        """What fits and judges stand-ins; a new one holds out every 4th sample of the batches."""
        if self.shared_calibrator is not None:
            return self.shared_calibrator
        samples = split_batches(self.batches, device_of(self.model), self.seed)
        with evaluating(self.model):
            return Calibrator(self.model, samples, self.units, self.replace, self.seed)
