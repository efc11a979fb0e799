"""Output divergence of a pruned copy from the dense model, on a few calibration samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from prunerecover.calibration.divergence import mean_divergence
from prunerecover.model.batches import CalibrationSet, ModelInputs, call, predictions_of
from prunerecover.model.copies import deep_copy, share_copy
from prunerecover.model.evaluation import evaluating, uncompiled
from prunerecover.plan.edits import Edit
from prunerecover.recovery.batchnorm import batchnorms, recalibrate_batchnorm, several_samples
from prunerecover.surgery.apply_edits import apply_edits

SAMPLES = 64


class NarrowedOutput:
    """Prunes copies of a model and compares their outputs with its own.

    Args:
        model: Unwrapped.
        batches: About 64 of their samples are run.
        recalibration: What BatchNorm is recalibrated on; None: what is run.

    Attributes:
        comparable: Whether the model returns as many outputs as there are samples; a detector's boxes are others for
            every copy.
    """

    def __init__(
        self, model: nn.Module, batches: Sequence[ModelInputs], recalibration: Sequence[ModelInputs] | None = None
    ) -> None:
        self.model = model
        self.batches = subsample(batches, SAMPLES)
        self.recalibration = several_samples(self.batches if recalibration is None else recalibration)
        try:
            self.dense = outputs(model, self.batches)
        except TypeError:  # no tensor to compare
            self.dense = []
        self.comparable = bool(self.dense) and all(
            output.shape[:1] == (batch.n_samples,) for output, batch in zip(self.dense, self.batches, strict=True)
        )

    def divergence(self, edits: Sequence[Edit], tensors: Mapping[str, Tensor]) -> float:
        """Return the mean divergence over samples once edits are applied to a copy, BatchNorm recalibrated."""
        return mean_divergence(self.batches, self.dense, outputs(self.pruned(edits, tensors), self.batches))

    def pruned(self, edits: Sequence[Edit], tensors: Mapping[str, Tensor]) -> nn.Module:
        """Return a copy with edits, BatchNorm recalibrated; what they leave alone may be the model's own."""
        network = share_copy(self.model)
        apply_edits(network, edits, tensors)
        if self.recalibration and batchnorms(network):
            network = deep_copy(network)  # whose statistics are not the model's own
            recalibrate_batchnorm(network, self.recalibration)
        return network


def judge_of(model: nn.Module, samples: CalibrationSet) -> NarrowedOutput:
    """Return what compares copies on held-out samples, with about as many others to recalibrate BatchNorm on."""
    return NarrowedOutput(model, samples.held_out, subsample(samples.fit, SAMPLES))


def fitted_to(samples: CalibrationSet, judge: NarrowedOutput) -> tuple[ModelInputs, ...]:
    """Return the samples that are fitted to: all of them unless the others can judge."""
    return samples.fit if judge.comparable else samples.all_samples


def outputs(model: nn.Module, batches: Sequence[ModelInputs]) -> list[Tensor]:
    """Return what the model predicts for each batch, in evaluation mode; it is bit-identical afterwards."""
    with evaluating(model), uncompiled():
        return [predictions_of(call(model, batch)) for batch in batches]


def subsample(batches: Sequence[ModelInputs], samples: int) -> list[ModelInputs]:
    """Return every k-th batch, so that about as many samples are left, of all classes where they are sorted by them.

    >>> import torch
    >>> len(subsample([ModelInputs((torch.zeros(32, 3),))] * 8, samples=64))
    2
    """
    total = sum(batch.n_samples for batch in batches)
    return list(batches[:: max(1, total // samples)])
