"""Ranks of a torch.distributed run, sharing a search: each rank computes a part of the requested results.

All ranks request the same results in the same order. A rank that fails, or leaves the search, reports the end in the
exchange where all ranks meet: no rank waits forever. The end of a process closes the connections, with the same effect.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

PATIENCE = timedelta(days=7)  # ranks wait half an hour for each other otherwise, and fail
PARTS = 2  # of a sum, each computed by a rank of two; a single process adds up the same parts, to the same bits
T = TypeVar("T")


class SearchEnded(RuntimeError):
    """Error of a search without all of its ranks: a rank has left, or asks for other results."""


class Spread(Protocol):
    """Function for the parts of a sum; ranks asking together compute a share each."""

    def __call__(self, what: str, parts: int, compute: Callable[[int], T], /) -> list[T]:
        """Return the parts.

        Args:
            what: Name of the sum.
            parts: Number of parts.
            compute: Function from the number of a part to the part: tensors in lists, tuples or dictionaries.
        """


def by_itself(what: str, parts: int, compute: Callable[[int], T]) -> list[T]:
    """Return the parts of a sum without other ranks; see `Spread`."""
    return [compute(number) for number in range(parts)]


@dataclass(frozen=True)
class _Said:
    """Message of a rank in an exchange.

    Attributes:
        at: Position in the search.
        value: Results found by the rank.
        error: Error of the rank at the position.
        leaves: Whether the rank takes part in no further exchange.
    """

    at: str
    value: Any = None
    error: BaseException | None = None
    leaves: bool = False


class Ranks:
    """Ranks of a shared search, or a single process.

    Args:
        group: Process group of the ranks; None: a single process.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group, self._over, self._shared = group, group is None, 0

    @property
    def alone(self) -> bool:
        """Whether there is a single rank."""
        return self._group is None

    def are_alike(self, key: str) -> bool:
        """Return whether all ranks do the same search; if not, there is no further exchange.

        Args:
            key: Hash of everything that decides the search of the rank.
        """
        alike = len({said.value for said in self._exchanged(_Said("the beginning", key))}) == 1
        self._over = not alike
        return alike

    def share(self, asked: Sequence[T]) -> Sequence[T]:
        """Return this rank's part of the requested results: of n ranks every n-th, counted over all requests."""
        rank, world = (0, 1) if self.alone else rank_and_world()
        first = (rank - self._shared) % world
        self._shared += len(asked)
        return asked[first::world]

    def united(self, at: str, found: Mapping[int, T], error: Exception | None = None) -> dict[int, T]:
        """Return the results of all ranks; if two ranks have a value for a number, the first rank's.

        Args:
            at: Position in the search, the same on all ranks.
            found: Results of the rank, by number.
            error: Error of the rank.

        Raises:
            Exception: On all ranks, the error of any rank.
            SearchEnded: If a rank has left the search, or does a different search.
        """
        if self.alone:
            if error is not None:
                raise error
            return dict(found)
        everyone: dict[int, T] = {}
        sent = tree_map_only(Tensor, Tensor.cpu, dict(found))  # no rank reads memory of another rank's device
        for said in reversed(self._exchanged(_Said(at, sent, error))):
            everyone |= said.value
        return everyone

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the search; the remaining ranks learn of the end in the next exchange.

        Args:
            error: Error of the rank; None: the search is complete.
        """
        if not self._over:
            self._over = True
            self._exchanged(_Said("the end", error=error, leaves=True))

    @property
    def over(self) -> bool:
        """Whether the exchange has ended: no further one may follow."""
        return self._over and not self.alone

    def _exchanged(self, said: _Said) -> list[_Said]:
        left, self._over = said.leaves, True  # no exchange follows an interrupted exchange
        everyone = gathered(_sendable(said), self._group)
        together = len({one.at for one in everyone}) == 1
        gone = [(n, one) for n, one in enumerate(everyone) if one.leaves or (one.error and one.at != said.at)]
        if left and (said.error is not None or len(gone) == len(everyone)):
            return everyone
        if said.error is not None and not together:
            raise said.error
        if gone and not left:
            (rank, one) = gone[0]
            raise SearchEnded(
                f"Expected all ranks to search until the end, but rank {rank} has left"
                f"{'' if one.error is None else f': {_in_words(one.error)}'}. Look at its output."
            )
        if not together:
            raise SearchEnded(
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
    """Return the message of a rank with an error readable in other processes."""
    if said.error is None:
        return said
    try:
        pickle.loads(pickle.dumps(said.error))
    except Exception:
        return _Said(said.at, said.value, RuntimeError(_in_words(said.error)), said.leaves)
    return said


@contextmanager
def sharing(key: Callable[[], str]) -> Iterator[Ranks]:
    """Yield the ranks of a shared search inside a `with` block, entered by all ranks of torch.distributed.

    Args:
        key: Function that returns a hash of everything that decides the search, e.g. network and samples; ranks with
            different keys search alone.
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
    """Return a group of all ranks, once all ranks have arrived."""
    try:
        meeting: Any = dist.new_group(backend="gloo")
    except RuntimeError as error:
        raise RuntimeError(
            f"Expected all ranks of torch.distributed to plan together, but some did not come: {error}. Call the "
            "function on every rank, or before the ranks are set up."
        ) from error
    group = patient_group()
    dist.destroy_process_group(meeting)  # no earlier: another rank may still be connecting to this one
    return group


def patient_group() -> dist.ProcessGroup | None:
    """Return a group of all ranks with nearly endless patience for slow ranks; None for a single rank."""
    if rank_and_world()[1] == 1:
        return None
    group: Any = dist.new_group(timeout=PATIENCE, backend="gloo")
    return group  # type: ignore[no-any-return]


def rank_and_world() -> tuple[int, int]:
    """Return the number of this rank, and of all ranks; (0, 1) without ranks."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def gathered(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Return the values of all ranks in order; all ranks must call the function.

    Args:
        value: Value of this rank.
        group: Process group of the ranks; None: the default group.
    """
    everyone = [value] * (rank_and_world()[1] if group is None else dist.get_world_size(group))
    if len(everyone) > 1:
        dist.all_gather_object(everyone, value, group=group)
    return everyone


def from_first_rank(value: T) -> T:
    """Return the first rank's value: ranks must not differ by a rounding error, or by a clock."""
    held = [value]
    if rank_and_world()[1] > 1:
        dist.broadcast_object_list(held, src=0)
    return held[0]
