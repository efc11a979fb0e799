"""Output divergence of pruned copies from the dense model, on a few calibration samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from prunerecover.calibration.samples import CalibrationSet
from prunerecover.calibration.steps import steps_of
from prunerecover.divergence.kept_outputs import KeptOutputs
from prunerecover.divergence.measure import mean_divergence
from prunerecover.divergence.outputs import OtherShape, Outputs, comparable, compared
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.copies import deep_copy, share_copy
from prunerecover.model.evaluation import evaluating, uncompiled
from prunerecover.plan.edits import Edit
from prunerecover.plan.plan import Plan
from prunerecover.plan.removed_units import removed_units
from prunerecover.recovery.batchnorm import batchnorms, several_samples
from prunerecover.recovery.dense_reference import DenseNorms, by_batch, recalibrate_as_dense
from prunerecover.surgery.apply_edits import apply_edits

SAMPLES, UNSEEN = 64, 512  # to compare on, of held-out ones and of further ones


class PrunedOutput:
    """Comparison of pruned copies of a model, in depth and width, with the dense outputs.

    The weights of the model must stay the same during the comparisons.

    Args:
        model: Model without wrappers.
        batches: Batches to compare on, reduced to about `most` samples.
        recalibration: Batches for BatchNorm statistics; None: the compared samples.
        most: About the largest number of compared samples.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[ModelInputs],
        recalibration: Sequence[ModelInputs] | None = None,
        most: int = SAMPLES,
    ) -> None:
        self.model = model
        self.batches = subsample(batches, most)
        self.recalibration = several_samples(self.batches if recalibration is None else recalibration)
        self._dense = KeptOutputs(lambda number: _output(model, self.batches[number]))

    @cached_property
    def comparable(self) -> bool:
        """Whether the model returns floating-point outputs, with a dimension of samples.

        Boxes of a detector differ for every copy, and neighbouring class numbers are not similar.
        """
        with evaluating(self.model), uncompiled():
            return bool(self.batches) and all(map(self._can_compare, range(len(self.batches))))

    def _can_compare(self, number: int) -> bool:
        try:
            output = self._dense.of(number)
        except TypeError:  # no tensor
            return False
        return comparable(output, self.batches[number].n_samples)

    def divergence(self, edits: Sequence[Edit], tensors: Mapping[str, Tensor]) -> float:
        """Return the mean divergence over samples after edits on a copy, with BatchNorm as in `DenseNorms`."""
        return self.divergence_of(self.pruned(edits, tensors, to_read=True))

    def divergence_of(self, network: nn.Module) -> float:
        """Return the mean divergence of a network over samples; infinite if the output has another shape."""
        with evaluating(self.model, network), uncompiled():
            dense = map(self._dense.of, range(len(self.batches)))
            try:
                return mean_divergence(self.batches, dense, (_output(network, batch) for batch in self.batches))
            except OtherShape:
                return math.inf

    def pruned(self, edits: Sequence[Edit], tensors: Mapping[str, Tensor], *, to_read: bool = False) -> nn.Module:
        """Return a copy with edits, BatchNorm recalibrated after removals; other tensors may be shared.

        Args:
            edits: Edits, in order.
            tensors: Fitted tensors of the edits, by key.
            to_read: Whether the copy is only read, see `apply_edits`.
        """
        network = share_copy(self.model)
        apply_edits(network, edits, tensors, to_read=to_read)
        if self.recalibration and removed_units(edits) and batchnorms(network):
            network = deep_copy(network)  # with separate statistics
            recalibrate_as_dense(network, self.recalibration, self._norms.after(Plan(edits=tuple(edits))))
        return network

    @cached_property
    def _norms(self) -> DenseNorms:
        return DenseNorms(self.model, self.recalibration, by_batch)


def judge_of(model: nn.Module, samples: CalibrationSet) -> PrunedOutput:
    """Return a comparison on held-out samples, with about as many other samples to recalibrate BatchNorm on."""
    return PrunedOutput(model, samples.held_out, subsample(samples.fit, SAMPLES))


def unseen_judge_of(model: nn.Module, samples: CalibrationSet) -> PrunedOutput:
    """Return a comparison on further samples behind all that choices and tuning see; without some, on held-out samples.

    Of a classifier, few samples have most of the divergence: on 64 held-out samples, the plan with the most freedom can
    seem the best. Networks with many outputs per sample are compared on the held-out samples.
    """
    steps, unseen = steps_of(model, samples.fit, samples.further), list[ModelInputs]()
    left = seen = sum(batch.n_samples for batch in steps.batches[steps.first :])
    for batch in samples.further(seen + UNSEEN) if seen else ():
        if left < batch.n_samples:
            unseen.append(batch.select(torch.arange(left, batch.n_samples)))
        left = max(0, left - batch.n_samples)
    if sum(batch.n_samples for batch in unseen) < SAMPLES:
        return judge_of(model, samples)
    return PrunedOutput(model, unseen, subsample(samples.fit, SAMPLES), UNSEEN)


def fitted_to(samples: CalibrationSet, judge: PrunedOutput) -> tuple[ModelInputs, ...]:
    """Return the samples to fit on: three quarters, with the rest to judge on, or all if outputs are not comparable."""
    return samples.fit if judge.comparable else samples.all_samples


def subsample(batches: Sequence[ModelInputs], samples: int) -> list[ModelInputs]:
    """Return every k-th batch, for about the given number of samples, of all classes even if sorted by class.

    >>> import torch
    >>> len(subsample([ModelInputs((torch.zeros(32, 3),))] * 8, samples=64))
    2
    """
    total = sum(batch.n_samples for batch in batches)
    return list(batches[:: max(1, total // samples)])


def _output(model: nn.Module, batch: ModelInputs) -> Outputs:
    return compared(call(model, batch))
