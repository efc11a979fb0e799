"""Ranks of a torch.distributed run that make one search together: each computes a part of what is asked for.

All ranks ask for the same things in the same order. A rank that fails, or leaves the search, says so in the exchange
that the others wait in, so that none waits forever; one whose process ends closes its connections, which does the same.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

PATIENCE = timedelta(days=7)  # ranks wait half an hour for each other otherwise, and fail
T = TypeVar("T")


@dataclass(frozen=True)
class _Said:
    """What a rank says in an exchange.

    Attributes:
        at: Where it is in the search.
        value: What it has found.
        error: What went wrong there.
        leaves: Whether it takes part in no further exchange.
    """

    at: str
    value: Any = None
    error: BaseException | None = None
    leaves: bool = False


class Ranks:
    """The ranks that share a search, or this process alone.

    Args:
        group: Process group of the ranks; None: there is no other.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group, self._over = group, group is None

    @property
    def alone(self) -> bool:
        """Whether there is no other rank."""
        return self._group is None

    def are_alike(self, key: str) -> bool:
        """Whether all ranks search for the same; else there is no further exchange.

        Args:
            key: What the search of this rank follows from.
        """
        alike = len({said.value for said in self._exchanged(_Said("the beginning", key))}) == 1
        self._over = not alike
        return alike

    def share(self, asked: Sequence[T]) -> Sequence[T]:
        """Return the part of what is asked for that this rank computes: every so many."""
        rank, world = (0, 1) if self.alone else rank_and_world()
        return asked[rank::world]

    def united(self, at: str, found: Mapping[int, T], error: Exception | None = None) -> dict[int, T]:
        """Return what all ranks have found; of two values for one thing that of the first rank.

        Args:
            at: Where the search is, the same on all ranks.
            found: What this rank has found, by number.
            error: What this rank failed with.

        Raises:
            Exception: On all ranks, what one of them failed with.
            RuntimeError: If a rank has left the search, or searches otherwise.
        """
        if self.alone:
            if error is not None:
                raise error
            return dict(found)
        everyone: dict[int, T] = {}
        sent = tree_map_only(Tensor, Tensor.cpu, dict(found))  # no rank reads memory of another one's device
        for said in reversed(self._exchanged(_Said(at, sent, error))):
            everyone |= said.value
        return everyone

    def leave(self, error: BaseException | None = None) -> None:
        """Take leave of the other ranks, which wait in their next exchange, or leave, too.

        Args:
            error: Why this rank cannot go on; None: it has found everything.
        """
        if not self._over:
            self._over = True
            self._exchanged(_Said("the end", error=error, leaves=True))

    def _exchanged(self, said: _Said) -> list[_Said]:
        everyone: list[Any] = [None] * dist.get_world_size(self._group)
        left, self._over = said.leaves, True  # no exchange follows one that is interrupted
        dist.all_gather_object(everyone, _sendable(said), group=self._group)
        gone = [(rank, one) for rank, one in enumerate(everyone) if one.leaves]
        if left and (said.error is not None or len(gone) == len(everyone)):
            return everyone
        if gone and not left:
            (rank, one) = gone[0]
            raise RuntimeError(
                f"Expected all ranks to search until the end, but rank {rank} has left"
                f"{'' if one.error is None else f': {_in_words(one.error)}'}. Look at its output."
            )
        if len({one.at for one in everyone}) > 1:
            raise RuntimeError(
                "Expected all ranks to ask for the same results, but they ask for others. Call the same functions with "
                "the same arguments on all ranks."
            )
        self._over = False
        if said.error is not None:
            raise said.error
        for rank, one in enumerate(everyone):
            if one.error is not None:
                one.error.add_note(f"This was on rank {rank}.")
                raise one.error
        return everyone


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ").removesuffix(".")


def _sendable(said: _Said) -> _Said:
    """Return what a rank says with an error that other processes can read."""
    if said.error is None:
        return said
    try:
        pickle.loads(pickle.dumps(said.error))
    except Exception:
        return _Said(said.at, said.value, RuntimeError(_in_words(said.error)), said.leaves)
    return said


@contextmanager
def sharing(key: Callable[[], str]) -> Iterator[Ranks]:
    """Yield the ranks that share a search inside a `with` block; all ranks of torch.distributed have to enter it.

    Args:
        key: Returns what the search follows from, such as network and samples; ranks whose keys differ search alone.
    """
    if rank_and_world()[1] == 1:
        yield Ranks()
        return
    group = _met()
    ranks = Ranks(group)
    try:
        yield ranks if ranks.are_alike(key()) else Ranks()
        ranks.leave()
    except BaseException as error:
        ranks.leave(error)
        raise
    finally:
        dist.destroy_process_group(group)


def _met() -> dist.ProcessGroup | None:
    """Return a group of all ranks, once they are all here."""
    try:
        dist.destroy_process_group(dist.new_group(backend="gloo"))
    except RuntimeError as error:
        raise RuntimeError(
            f"Expected all ranks of torch.distributed to plan together, but some did not come: {error}. Call the "
            "function on every rank, or before the ranks are set up."
        ) from error
    return patient_group()


def patient_group() -> dist.ProcessGroup | None:
    """Return a group of all ranks in which one waits for as long as others compute; None for a rank alone."""
    if rank_and_world()[1] == 1:
        return None
    group: Any = dist.new_group(timeout=PATIENCE, backend="gloo")
    return group  # type: ignore[no-any-return]


def rank_and_world() -> tuple[int, int]:
    """Return the number of this rank, and of all ranks; (0, 1) where there are none."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
