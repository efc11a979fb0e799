"""A loader that goes on in the middle of an epoch, as runs that save every step need it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler


class ByEpoch(Sampler[int]):
    """Shuffles by the number of the epoch, which Lightning sets."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch: int) -> None:
        """Take the number of the epoch that comes next."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.size, generator=torch.Generator().manual_seed(self.epoch)).tolist()


class ResumableLoader(DataLoader[Any]):
    """Says in checkpoints how far it is (Lightning calls `state_dict`), and draws no random numbers of its own.

    Args:
        data: With a length.
        batch_size: Samples per batch.
        drop_last: Leave out a last batch that is smaller.
    """

    def __init__(self, data: Dataset[Any], batch_size: int, drop_last: bool = False) -> None:
        sampler = ByEpoch(len(data))  # type: ignore[arg-type]
        super().__init__(data, batch_size, sampler=sampler, generator=torch.Generator(), drop_last=drop_last)
        self.given = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        passed = self.given = self.given % len(self)
        for number, batch in enumerate(super().__iter__()):
            if number >= passed:
                self.given += 1
                yield batch

    def state_dict(self) -> dict[str, int]:
        """Return how many batches of the epoch were given."""
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on behind these batches."""
        self.given = state["given"]
