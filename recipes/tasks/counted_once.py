"""Evaluation on several processes that counts each sample once.

Lightning deals the samples of a loader out in turn, so that all processes get as many: where the turns do not come out
even, the last processes get some of the first samples again (`torch.utils.data.DistributedSampler` pads). Whoever
leaves them out of the metrics gets what one process gets. All processes still run all batches, as DDP needs.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from torch.utils._pytree import tree_leaves
from torch.utils.data import DistributedSampler


def counted(trainer: pl.Trainer, batch_idx: int, size: int, dataloader_idx: int = 0) -> int:
    """Return how many samples of a batch count here; those behind them are repeated, and count elsewhere.

    Args:
        trainer: That validates or tests.
        batch_idx: Number of the batch in its loader.
        size: Samples in it.
        dataloader_idx: Number of the loader.
    """
    loader: Any = tree_leaves(trainer.test_dataloaders if trainer.testing else trainer.val_dataloaders)[dataloader_idx]
    batches = getattr(loader, "batch_sampler", None)
    sampler = getattr(batches, "sampler", None)
    if not isinstance(sampler, DistributedSampler) or sampler.drop_last:
        return size
    first, samples = batch_idx * batches.batch_size, len(sampler.dataset)  # type: ignore[arg-type, union-attr]
    return sum(sampler.rank + i * sampler.num_replicas < samples for i in range(first, first + size))
