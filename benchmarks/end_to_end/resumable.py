"""Loader with a position inside an epoch, for runs with a checkpoint at every step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler


class ByEpoch(Sampler[int]):
    """Shuffles by Lightning's epoch number; skips the first `passed` samples once."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch, self.passed = size, 0, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.size, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        passed, self.passed = self.passed, 0
        yield from order[passed:]


class ResumableLoader(DataLoader[Any]):
    """Saves the position in checkpoints (Lightning calls `state_dict`), and leaves the global random state alone.

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
        """Continue after the batches in the state."""
        self.given = state["given"]
