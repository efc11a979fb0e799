"""Objectives that a search keeps low: the output divergence from the dense network, or a loss.

Networks are measured batch by batch, so that the shared part of two networks is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prunerecover.divergence.kept_outputs import KeptOutputs
from prunerecover.divergence.measure import divergence_by_sample, divergence_of_batch, mean_divergence
from prunerecover.divergence.outputs import Outputs, compared
from prunerecover.importance.measuring.losses import Loss, check_loss
from prunerecover.model.batches import ModelInputs, as_inputs, call, on_device

PART = 4  # a rough score reads a batch in four
GROUPS = 16  # of samples, to tell the noise of a difference by


class OutputDivergence:
    """The mean divergence of the output from the dense output; see `output_divergence`.

    Args:
        batches: Samples on the network's device.
        few: Number of the last batches, for rough scores; None: all.
        around: Context of passes through a network, such as one in which BatchNorm normalises by the batch.
    """

    name = "output_divergence"

    def __init__(
        self,
        batches: Sequence[ModelInputs],
        few: int | None = None,
        around: Callable[[nn.Module], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        self.batches, self._around = batches, around
        self.n_samples = sum(batch.n_samples for batch in batches)
        self.all = range(len(batches))
        self.few = self.all if few is None else self.all[-few:]
        self._dense = KeptOutputs(partial(self.run, nn.Identity()))

    def run(self, network: nn.Module, number: int) -> Outputs:
        """Return the output."""
        with self._around(network):
            return compared(call(network, self.batches[number]))

    def start(self, dense: nn.Module, found: Iterable[Outputs]) -> None:
        """Keep the dense network's outputs as long as there is room; further outputs are computed again each time."""
        self._dense = KeptOutputs(partial(self.run, dense))
        for number, output in enumerate(found):
            self._dense.keep(number, output)

    def judge(self, numbers: Sequence[int], found: Iterable[Outputs]) -> float:
        """Return the mean divergence."""
        return mean_divergence((self.batches[i] for i in numbers), map(self._dense.of, numbers), found)

    def with_groups(self, numbers: Sequence[int], found: Iterable[Outputs]) -> tuple[float, NDArray[np.float64]]:
        """Return the mean divergence, and those of about 16 groups of samples, to tell the noise of a difference."""
        size, total, groups = max(1, self.n_samples // GROUPS), 0.0, list[NDArray[np.float64]]()
        for number, output in zip(numbers, found, strict=True):
            batch, dense = self.batches[number], self._dense.of(number)
            total += divergence_of_batch(batch, dense, output)
            groups.append(divergence_by_sample(batch, dense, output, size).sum(axis=1))
        return total / sum(self.batches[number].n_samples for number in numbers), np.concatenate(groups)


class LossIncrease:
    """Increase of a loss over the dense network's loss, mean over the samples; negative for a fall.

    Args:
        loss: `loss(model, batch) -> scalar`, a mean over the batch.
        batches: Batches in the form of the loss.
        device: Device of the network.
    """

    name = "cross_entropy"

    def __init__(self, loss: Loss, batches: Sequence[Any], device: torch.device) -> None:
        self.loss, self.batches = loss, [on_device(batch, device) for batch in batches]
        self._samples = [as_inputs(batch).n_samples for batch in self.batches]
        self.n_samples = sum(self._samples)
        self.all = range(len(batches))
        self.few = self.all[-max(1, len(batches) // PART) :]
        self._dense: Sequence[Tensor] = ()

    def run(self, network: nn.Module, number: int) -> Tensor:
        """Return the loss of one batch."""
        return check_loss(self.loss(network, self.batches[number]))

    def start(self, dense: nn.Module, found: Iterable[Tensor]) -> None:
        """Take the dense network's losses."""
        self._dense = list(found)

    def judge(self, numbers: Sequence[int], found: Iterable[Tensor]) -> float:
        """Return the difference of the losses."""
        more = sum(self._samples[i] * float(loss - self._dense[i]) for i, loss in zip(numbers, found, strict=True))
        return more / sum(self._samples[i] for i in numbers)


Objective = OutputDivergence | LossIncrease
