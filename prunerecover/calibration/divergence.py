"""Output divergence: how far a pruned model's output is from the dense one's, by which everything is judged."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from prunerecover.model.batches import ModelInputs, without_padding
from prunerecover.refusal import Refusal

IN_CACHE = 1 << 18  # logits, 1 MiB


class OtherShape(Refusal):
    """The pruned network's output has another shape than the dense one's."""


def output_divergence(dense: Tensor, pruned: Tensor) -> Tensor:
    """Return the mean divergence over samples, a scalar >= 0.

    Two-dimensional outputs `(N, classes)` and three-dimensional `(N, tokens, vocabulary)` are taken as logits:
    KL(dense || pruned) in nats. Others, and outputs with a single value per position: squared L2 relative to the
    dense norm.

    Raises:
        OtherShape: If the shapes differ, as those of detections do.

    >>> output_divergence(torch.zeros(2, 3), torch.ones(2, 3)).item()
    0.0
    """
    if dense.shape != pruned.shape:
        raise OtherShape(
            f"an output of shape {tuple(dense.shape)}, as the dense network's",
            f"got {tuple(pruned.shape)}: the number of detections follows what is detected",
            "Rank by importance='taylor' with a loss.",
        )
    if dense.ndim in (2, 3) and dense.shape[-1] > 1:
        return _kl(dense.flatten(0, -2), pruned.flatten(0, -2))
    dense, pruned = dense.float(), pruned.float()
    return (dense - pruned).square().sum() / dense.square().sum().clamp_min(torch.finfo(torch.float32).tiny)


def _kl(dense: Tensor, pruned: Tensor) -> Tensor:
    """Return the mean KL divergence of logits `(N, classes)`, some rows at a time, so that they stay in a cache."""
    rows = max(1, IN_CACHE // dense.shape[-1])
    total = torch.zeros((), device=dense.device)
    for some, others in zip(torch.split(dense, rows), torch.split(pruned, rows), strict=True):
        log_p, log_q = some.float().log_softmax(-1), others.float().log_softmax(-1)
        total = total + (log_p.exp() * (log_p - log_q)).sum(-1).sum()
    return total / len(dense)


def mean_divergence(batches: Iterable[ModelInputs], dense: Iterable[Tensor], pruned: Iterable[Tensor]) -> float:
    """Return the mean output divergence over the samples of all batches.

    Args:
        batches: What the models were called with: says how many samples a batch has, and which positions are padding.
        dense: Outputs of the dense model, one per batch, in the shapes that `output_divergence` takes. Padded positions
            are left out here, unless they were before.
        pruned: Outputs of the pruned model, likewise.

    >>> batches = [ModelInputs((torch.zeros(3, 1),)), ModelInputs((torch.zeros(1, 1),))]
    >>> mean_divergence(batches, [torch.ones(3, 1), torch.ones(1, 1)], [torch.zeros(3, 1), torch.ones(1, 1)])
    0.75
    """
    total, samples = 0.0, 0
    for batch, before, after in zip(batches, dense, pruned, strict=True):
        total += divergence_of_batch(batch, before, after)
        samples += batch.n_samples
    return total / samples


def divergence_of_batch(batch: ModelInputs, dense: Tensor, pruned: Tensor) -> float:
    """Return the output divergence of one batch times its number of samples; see `mean_divergence`.

    >>> divergence_of_batch(ModelInputs((torch.zeros(3, 1),)), torch.ones(3, 1), torch.zeros(3, 1))
    3.0
    """
    found = output_divergence(without_padding(dense, batch), without_padding(pruned, batch))
    return float(found) * batch.n_samples
