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


def divergence_by_sample(batch: ModelInputs, dense: Outputs, pruned: Outputs, together: int = 1) -> NDArray[np.float64]:
    """Return the parts of the output divergence of each sample, or of a few together, `(rows, parts)`; at least a part.

    If the outputs have no dimension of samples in front, all rows hold the divergence of the batch.

    Args:
        batch: Inputs of the models.
        dense: Outputs of the dense model.
        pruned: Outputs of the pruned model.
        together: Number of samples in each row, the last perhaps fewer.

    >>> batch, pruned = ModelInputs((torch.zeros(2, 1),)), torch.tensor([[0.0], [1.0]])
    >>> divergence_by_sample(batch, torch.ones(2, 1), pruned).tolist()
    [[1.0], [0.0]]
    >>> divergence_by_sample(batch, torch.ones(2, 1), pruned, together=2).tolist()
    [[0.5]]
    """
    rows = torch.split(torch.arange(batch.n_samples), together)
    if not by_sample(dense, batch.n_samples):
        return np.repeat([_parts(batch, dense, pruned)], len(rows), axis=0)

    def parts(numbers: Tensor) -> list[float]:
        of = (each(outputs, lambda tensor: tensor[numbers.to(tensor.device)]) for outputs in (dense, pruned))
        return _parts(batch.select(numbers), *of)

    return np.array([parts(numbers) for numbers in rows])


def _parts(batch: ModelInputs, dense: Outputs, pruned: Outputs) -> list[float]:
    found = output_parts(unpadded(dense, batch), unpadded(pruned, batch))
    return [float(found)] if isinstance(found, Tensor) else [float(part) for part in found.values()]
