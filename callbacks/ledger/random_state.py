"""Random states of all ranks as plain data, so that a resumed run draws the same numbers as an uninterrupted run.

Lightning saves none. Exact from a file written at the end of an epoch; from the middle of an epoch, the state at the
surgery is exact, but the order of the remaining batches is not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng

from prunerecover.store.ranks import gathered, rank_and_world


@contextmanager
def isolated() -> Iterator[None]:
    """Restore the random states afterwards, as Lightning's `isolate_rng` does, but also after an error."""
    passing: BaseException | None = None
    with isolate_rng():
        try:
            yield
        except BaseException as error:
            passing = error
    if passing is not None:
        raise passing


def seed_all(seed: int) -> None:
    """Seed the random states covered by `isolated`; Lightning's own function also sets an environment variable."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def collect(own: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the states of every rank (all ranks must call this), readable with `torch.load(weights_only=True)`.

    Args:
        own: State of this rank; None: the present state.
    """
    return gathered(of_this_rank() if own is None else own)


def restore(states: list[dict[str, Any]]) -> None:
    """Set the state of this rank; no effect if the number of ranks has changed since saving."""
    rank, world = rank_and_world()
    if world == len(states):
        restore_this_rank(states[rank])


def restore_this_rank(state: dict[str, Any]) -> None:
    """Set the state of this rank to a state from `of_this_rank`."""
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def of_this_rank() -> dict[str, Any]:
    """Return the state of this rank."""
    version, internal, gauss = random.getstate()
    name, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "python": (version, list(internal), gauss),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        # The rank's own device alone: reading the state of other devices would create a context on each.
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,  # type: ignore[no-untyped-call]
    }
