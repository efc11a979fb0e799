"""Output divergence over batches: the distance of pruned outputs from dense outputs, the common measure of quality."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prunerecover.divergence.outputs import Outputs, by_sample, each, unpadded
from prunerecover.divergence.registry import output_divergence, output_parts
from prunerecover.model.batches import ModelInputs


def mean_divergence(batches: Iterable[ModelInputs], dense: Iterable[Outputs], pruned: Iterable[Outputs]) -> float:
    """Return the mean output divergence over the samples of all batches.

    Args:
        batches: Inputs of the models, for the number of samples and the padded positions.
        dense: Outputs of the dense model, one per batch, as in `output_divergence`. Padded positions are left out here,
            unless removed before.
        pruned: Outputs of the pruned model, in the same form.

    >>> batches = [ModelInputs((torch.zeros(3, 1),)), ModelInputs((torch.zeros(1, 1),))]
    >>> mean_divergence(batches, [torch.ones(3, 1), torch.ones(1, 1)], [torch.zeros(3, 1), torch.ones(1, 1)])
    0.75
    """
    total, samples = 0.0, 0
    for batch, before, after in zip(batches, dense, pruned, strict=True):
        total += divergence_of_batch(batch, before, after)
        samples += batch.n_samples
    return total / samples


def divergence_of_batch(batch: ModelInputs, dense: Outputs, pruned: Outputs) -> float:
    """Return the output divergence of a batch times the number of samples; see `mean_divergence`.

    >>> divergence_of_batch(ModelInputs((torch.zeros(3, 1),)), torch.ones(3, 1), torch.zeros(3, 1))
    3.0
    """
    return float(output_divergence(unpadded(dense, batch), unpadded(pruned, batch))) * batch.n_samples


def divergence_by_sample(batch: ModelInputs, dense: Outputs, pruned: Outputs) -> NDArray[np.float64]:
    """Return the parts of the output divergence of each sample, `(samples, parts)`; a single part without parts.

    If the outputs have no dimension of samples in front, all samples get the divergence of the batch.

    >>> batch, pruned = ModelInputs((torch.zeros(2, 1),)), torch.tensor([[0.0], [1.0]])
    >>> divergence_by_sample(batch, torch.ones(2, 1), pruned).tolist()
    [[1.0], [0.0]]
    """
    samples = batch.n_samples
    if not by_sample(dense, samples):
        return np.repeat([_parts(batch, dense, pruned)], samples, axis=0)

    def one(number: int) -> list[float]:
        index = torch.tensor([number])
        of = (each(outputs, lambda tensor: tensor[index.to(tensor.device)]) for outputs in (dense, pruned))
        return _parts(batch.select(index), *of)

    return np.array([one(number) for number in range(samples)])


def _parts(batch: ModelInputs, dense: Outputs, pruned: Outputs) -> list[float]:
    found = output_parts(unpadded(dense, batch), unpadded(pruned, batch))
    return [float(found)] if isinstance(found, Tensor) else [float(part) for part in found.values()]
