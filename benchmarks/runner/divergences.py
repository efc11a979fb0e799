"""Output divergence of a pruned network on samples that planning did not see."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.runner.rows import Scores
from prunerecover.divergence.measure import divergence_by_sample
from prunerecover.divergence.outputs import compared
from prunerecover.model.batches import as_inputs, call


@torch.no_grad()
def divergences(dense: nn.Module, pruned: nn.Module, inputs: Tensor, at_once: int) -> Scores:
    """Return the output divergence on each sample, `(N,)`.

    Args:
        dense: Dense network, in evaluation mode.
        pruned: Pruned network; evaluation mode is switched on.
        inputs: Inputs, `(N, ...)`.
        at_once: Samples in a pass.
    """
    found = list[Scores]()
    for part in torch.split(inputs, at_once):
        batch = as_inputs(part)
        before, after = (compared(call(one, batch)) for one in (dense, pruned.eval()))
        found.append(divergence_by_sample(batch, before, after).sum(1))
    return np.concatenate(found)
