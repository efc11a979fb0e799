"""Time boxes: work on a machine that is lent for minutes ends with them, and nothing is begun that would not end."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType


class OutOfTime(BaseException):
    """End of a time box; no Exception, so that nothing on the way takes it for an error and goes on.

    Args:
        seconds: Seconds that the piece of work had, if it alone was too long; None: all minutes are over.
    """

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__()
        self.seconds = seconds


@dataclass
class TimeBox:
    """A number of minutes, from when it is made.

    Attributes:
        minutes: Minutes in all; None: no end.
        longest: Seconds that the longest piece of work has taken; another one is not begun with less.
    """

    minutes: float | None = None
    started: float = field(default_factory=time.monotonic)
    longest: float = 0.0

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return float("inf") if self.minutes is None else 60 * self.minutes - (time.monotonic() - self.started)

    @contextmanager
    def piece(self, most: float = float("inf")) -> Iterator[None]:
        """Do a piece of work, and end it when its seconds or all minutes are over.

        Args:
            most: Seconds of this piece.

        Raises:
            OutOfTime: If they are over.
        """
        if self.minutes is None:
            yield
            return
        if self.left <= min(self.longest, most):
            raise OutOfTime
        before, began = signal.signal(signal.SIGALRM, _over), time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, min(self.left, most))
        try:
            yield
        except OutOfTime:
            raise OutOfTime(most if self.left >= most else None) from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            self.longest = max(self.longest, time.monotonic() - began)


def _over(number: int, frame: FrameType | None) -> None:
    raise OutOfTime
