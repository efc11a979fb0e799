"""Message of a search that is interrupted: what it has found so far, and how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prunerecover.display.messages import say


@contextmanager
def resumable(store: str | Path | None, what: str, count: Callable[[Path], int]) -> Iterator[None]:
    """Say how to go on when a search inside the `with` block is interrupted.

    Args:
        store: File or folder of what is done; None: nothing is kept, and nothing said.
        what: Name of one of the things in it.
        count: Returns how many of them are in it.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):  # Lightning turns the one into the other
        if store is not None:
            found = count(Path(store))
            say(f"interrupted, with {found} {what}{'' if found == 1 else 's'} in {store}. Run this again to go on.")
        raise
