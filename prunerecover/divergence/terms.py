"""Terms of divergences: distances of numbers, logits, probabilities and directions; 0 for equal arguments."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

IN_CACHE = 1 << 18  # logits, 1 MiB
LEAST = 1e-6  # lower limit of probabilities: smaller ones count as equal


def logits(dense: Tensor, pruned: Tensor) -> Tensor:
    """Return the mean KL(dense || pruned) in nats of logits `(..., classes)`, in chunks of rows that fit a cache.

    >>> logits(torch.zeros(2, 3), torch.ones(2, 3)).item()
    0.0
    """
    dense, pruned = dense.flatten(0, -2), pruned.flatten(0, -2)
    rows = max(1, IN_CACHE // dense.shape[-1])
    total = torch.zeros((), device=dense.device)
    for some, others in zip(torch.split(dense, rows), torch.split(pruned, rows), strict=True):
        log_p, log_q = some.float().log_softmax(-1), others.float().log_softmax(-1)
        total = total + (log_p.exp() * (log_p - log_q)).sum(-1).sum()
    return total / len(dense)


def relative(dense: Tensor, pruned: Tensor) -> Tensor:
    """Return the squared L2 distance relative to the squared dense norm.

    >>> relative(torch.ones(4), torch.zeros(4)).item()
    1.0
    """
    dense, pruned = dense.float(), pruned.float()
    return (dense - pruned).square().sum() / dense.square().sum().clamp_min(torch.finfo(torch.float32).tiny)


def cosine(dense: Tensor, pruned: Tensor) -> Tensor:
    """Return the mean of 1 - cos of the angle between embeddings `(..., features)`.

    >>> cosine(torch.eye(2), 3 * torch.eye(2)).item(), cosine(torch.eye(2), torch.eye(2).flip(0)).item()
    (0.0, 1.0)
    """
    return (1 - F.cosine_similarity(dense.float(), pruned.float(), dim=-1)).mean()


def pixels(dense: Tensor, pruned: Tensor) -> Tensor:
    """Return the mean KL in nats over the positions of a map of logits, `(N, classes, ...)`."""
    return logits(dense.movedim(1, -1), pruned.movedim(1, -1))


def yes_or_no(dense: Tensor, pruned: Tensor) -> Tensor:
    """Return KL(dense || pruned) of probabilities of yes-or-no events, elementwise."""
    return _cross(dense, pruned) + _cross(1 - dense, 1 - pruned)


def one_of(dense: Tensor, pruned: Tensor) -> Tensor:
    """Return KL(dense || pruned) of probabilities `(..., classes)` of exclusive events, by row."""
    return _cross(dense, pruned).sum(-1)


def _cross(p: Tensor, q: Tensor) -> Tensor:
    p, q = p.clamp_min(LEAST), q.clamp_min(LEAST)
    return p * (p / q).log()
