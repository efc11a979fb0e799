"""Evaluation on several processes that counts each sample once.

Lightning deals the samples of a loader out in turn, equally many to all processes: if the turns are uneven, the last
processes repeat some of the first samples (`torch.utils.data.DistributedSampler` pads). Metrics without the repeated
samples equal those of a single process. All processes still run all batches, as DDP needs.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from torch.utils._pytree import tree_leaves
from torch.utils.data import DistributedSampler


def counted(trainer: pl.Trainer, batch_idx: int, size: int, dataloader_idx: int = 0) -> int:
    """Return the number of samples of a batch to count here; the rest are repeated, and counted elsewhere.

    Args:
        trainer: Trainer in validation or test.
        batch_idx: Number of the batch in its loader.
        size: Number of samples in the batch.
        dataloader_idx: Number of the loader.
    """
    loader: Any = tree_leaves(trainer.test_dataloaders if trainer.testing else trainer.val_dataloaders)[dataloader_idx]
    batches = getattr(loader, "batch_sampler", None)
    sampler = getattr(batches, "sampler", None)
    if not isinstance(sampler, DistributedSampler) or sampler.drop_last:
        return size
    first, samples = batch_idx * batches.batch_size, len(sampler.dataset)  # type: ignore[arg-type, union-attr]
    return sum(sampler.rank + i * sampler.num_replicas < samples for i in range(first, first + size))
