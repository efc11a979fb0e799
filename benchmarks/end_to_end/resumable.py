"""A loader that goes on in the middle of an epoch, as runs that save every step need it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler


class ByEpoch(Sampler[int]):
    """Shuffles by the number of the epoch, which Lightning sets; leaves out the first `passed` samples once."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch, self.passed = size, 0, 0

    def set_epoch(self, epoch: int) -> None:
        """Take the number of the epoch that comes next."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.size, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        passed, self.passed = self.passed, 0
        yield from order[passed:]


class ResumableLoader(DataLoader[Any]):
    """Says in checkpoints how far it is (Lightning calls `state_dict`), and draws no random numbers of its own.

    Args:
        data: With a length.
        batch_size: Samples per batch.
    """

    def __init__(self, data: Dataset[Any], batch_size: int) -> None:
        self.order = ByEpoch(len(data))  # type: ignore[arg-type]
        super().__init__(data, batch_size, sampler=self.order, generator=torch.Generator())
        self.size, self.given = batch_size, 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.given %= math.ceil(self.order.size / self.size)
        self.order.passed = self.given * self.size  # nothing is drawn for batches that are not loaded
        for batch in super().__iter__():
            self.given += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return how many batches of the epoch were given."""
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on behind these batches."""
        self.given = state["given"]
