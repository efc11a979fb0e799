"""Random states of all ranks as plain data, so that a resumed run draws what an uninterrupted one would.

Lightning saves none. Exact from a file written at the end of an epoch; from the middle of one the state of the surgery
is exact, but the order of the remaining batches is not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch.utilities.seed import isolate_rng


@contextmanager
def isolated() -> Iterator[None]:
    """Restore the random states afterwards, as Lightning's `isolate_rng` does, but also when an error passes."""
    passing: BaseException | None = None
    with isolate_rng():
        try:
            yield
        except BaseException as error:
            passing = error
    if passing is not None:
        raise passing


def seed_all(seed: int) -> None:
    """Seed what `isolated` restores; Lightning's own function would also leave the seed in the environment."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def collect(own: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the states of every rank (all ranks must call this), readable with `torch.load(weights_only=True)`.

    Args:
        own: The state of this rank; None: as it is now.
    """
    own = of_this_rank() if own is None else own
    if not (dist.is_available() and dist.is_initialized()):
        return [own]
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, own)
    return states


def restore(states: list[dict[str, Any]]) -> None:
    """Set this rank's state; nothing happens if the world has another size than when it was saved."""
    distributed = dist.is_available() and dist.is_initialized()
    rank, world = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
    if world != len(states):
        return
    restore_this_rank(states[rank])


def restore_this_rank(state: dict[str, Any]) -> None:
    """Set this rank's state to what `of_this_rank` returned."""
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def of_this_rank() -> dict[str, Any]:
    """Return the state of this rank."""
    version, internal, gauss = random.getstate()
    name, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "python": (version, list(internal), gauss),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        # Of this rank's device alone: asking the others would put a context on each of them.
        "cuda": torch.cuda.get_rng_state() if _uses_cuda() else None,
    }
