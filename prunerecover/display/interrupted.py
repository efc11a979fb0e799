"""Message for an interrupted search: the results so far, and the way to continue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prunerecover.display.messages import say


@contextmanager
def resumable(store: str | Path | None, what: str, count: Callable[[Path], int]) -> Iterator[None]:
    """Log the way to continue when a search inside the `with` block is interrupted.

    Args:
        store: File or folder of the results; None: no store, and no message.
        what: Name of a single result.
        count: Function that returns the number of stored results.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):  # Lightning turns KeyboardInterrupt into SystemExit
        if store is not None:
            found = count(Path(store))
            say(f"interrupted, with {found} {what}{'' if found == 1 else 's'} in {store}. Run this again to go on.")
        raise
