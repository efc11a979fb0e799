"""How far a pruned model's output is from the dense one's: what units and their replacements are judged by."""

from __future__ import annotations

import torch
from torch import Tensor


def output_divergence(dense: Tensor, pruned: Tensor) -> Tensor:
    """Return the mean divergence over samples, a scalar >= 0.

    Two-dimensional outputs `(N, classes)` and three-dimensional `(N, tokens, vocabulary)` are taken as logits:
    KL(dense || pruned) in nats. Others, and outputs with a single value per position: squared L2 relative to the
    dense norm.

    >>> output_divergence(torch.zeros(2, 3), torch.ones(2, 3)).item()
    0.0
    """
    dense, pruned = dense.float(), pruned.float()
    if dense.ndim in (2, 3) and dense.shape[-1] > 1:
        log_p, log_q = dense.log_softmax(-1), pruned.log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    return (dense - pruned).square().sum() / dense.square().sum().clamp_min(torch.finfo(torch.float32).tiny)
