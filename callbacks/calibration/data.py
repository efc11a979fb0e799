"""Calibration batches from the user's training dataloaders; loaders, samplers and workers are not disturbed.

Samples are a seeded random subset of the training set, the same on every rank, independent of the random state. A
custom sampler is followed, on a copy: it may exclude validation samples, or weigh classes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch.utils._pytree import tree_map
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

WHOLE_DATASET = (RandomSampler, SequentialSampler, DistributedSampler)


def calibration_batches(trainer: pl.Trainer, n_samples: int, seed: int) -> Iterator[Any]:
    """Yield batches of about `n_samples` samples in the form expected by the training step.

    Args:
        trainer: Trainer in a fit.
        n_samples: Number of samples per dataloader.
        seed: Seed of the subset.
    """
    combined = trainer.fit_loop._combined_loader
    assert combined is not None, "a fit without training data never gets here"
    loaders = tree_map(lambda leaf: _quiet_loader(leaf, n_samples, seed), combined.iterables)
    for batch, _, _ in CombinedLoader(loaders, combined._mode):
        yield batch


def _quiet_loader(loader: Any, n_samples: int, seed: int) -> Iterable[Any]:
    """Return a loader of some of the same samples, without worker processes."""
    if not isinstance(loader, DataLoader):
        return cast(Iterable[Any], _own_copy(loader))
    dataset: Dataset[Any] = loader.dataset
    if isinstance(dataset, IterableDataset):
        return DataLoader(_own_copy(dataset), batch_size=loader.batch_size, collate_fn=loader.collate_fn)
    batch_sampler = loader.batch_sampler
    if batch_sampler is not None and type(batch_sampler) is not BatchSampler:
        own = copy.deepcopy(batch_sampler, {id(dataset): dataset})
        return DataLoader(dataset, batch_sampler=own, collate_fn=loader.collate_fn)
    size = loader.batch_size or 1
    wanted = math.ceil(n_samples / size) * size if loader.drop_last else n_samples
    indices = _indices(loader, wanted, seed)
    return DataLoader(
        Subset(dataset, indices),
        batch_size=loader.batch_size,
        collate_fn=loader.collate_fn,
        drop_last=loader.drop_last and len(indices) >= size,
    )


def _indices(loader: DataLoader[Any], n: int, seed: int) -> list[int]:
    if type(loader.sampler) in WHOLE_DATASET:
        order = torch.randperm(len(cast(Sized, loader.dataset)), generator=torch.Generator().manual_seed(seed))
        return cast(list[int], order[:n].tolist())
    sampler = copy.deepcopy(loader.sampler, {id(loader.dataset): loader.dataset})
    return list(islice(iter(sampler), n))


def _own_copy(data: Any) -> Any:
    """Copy a one-pass iterator, lest the epoch miss a batch; return other iterables themselves."""
    return copy.deepcopy(data) if hasattr(data, "__next__") else data
