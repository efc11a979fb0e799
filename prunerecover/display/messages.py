"""Messages of long calls: lines of the logger "prunerecover", on stderr unless the program has set up logging."""

from __future__ import annotations

import logging
import os
import sys

LOGGER = logging.getLogger("prunerecover")


class _ToStderr(logging.Handler):
    """Handler that writes to the present stderr of each message: a bar may have replaced stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        print(self.format(record), file=sys.stderr, flush=True)


def on_first_rank() -> bool:
    """Whether this process logs for all ranks, by the environment."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK"))


def say(message: str) -> None:
    """Log a message at INFO, on the first rank.

    Args:
        message: Sentence or two; the name of the package is added in front.
    """
    if not on_first_rank():
        return
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)
    if not LOGGER.hasHandlers():
        LOGGER.addHandler(_ToStderr())
    LOGGER.info("prunerecover: %s", message)


def in_words(seconds: float) -> str:
    """Return a duration, rounded.

    >>> in_words(41), in_words(200), in_words(2 * 3600)
    ('40 seconds', '3 minutes', '2 hours')
    """
    if seconds < 90:
        return f"{max(round(seconds, -1), 10):.0f} seconds"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.0f} hours"
