"""Training data of a transformers Trainer, without accelerate's wrappers around the loader."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler


def plain_loader(loader: Any, trainer: Any) -> Any:
    """Return a loader of the whole training set, the same in every process, whatever accelerate shards.

    A custom sampler is kept.

    Args:
        loader: Loader prepared by accelerate.
        trainer: Trainer of the loader.
    """
    if not isinstance(loader, DataLoader):
        return loader
    size, collate = trainer._train_batch_size, loader.collate_fn
    if isinstance(loader.dataset, IterableDataset):
        dataset = getattr(loader.dataset, "dataset", loader.dataset)
        return DataLoader(dataset if isinstance(dataset, IterableDataset) else loader.dataset, size, collate_fn=collate)
    sampler = _sampler_of(loader)
    shuffled = sampler is None or isinstance(sampler, RandomSampler | SequentialSampler)
    return DataLoader(
        loader.dataset,
        size,
        sampler=RandomSampler(loader.dataset) if shuffled else sampler,  # type: ignore[arg-type]
        collate_fn=collate,
        drop_last=trainer.args.dataloader_drop_last,
    )


def _sampler_of(loader: Any) -> Any:
    """Return the sampler under the wrappers of accelerate."""
    found = loader.batch_sampler
    while found is not None and type(found) is not BatchSampler and hasattr(found, "batch_sampler"):
        found = found.batch_sampler
    return getattr(found, "sampler", None)
