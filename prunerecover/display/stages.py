"""Stages of a long search, one inside the other: which one is shown, how much of them is done, and the time left.

A stage of known length tells the time left by its own pace; one that is given an expectation goes by that as long as
it has no pace, and by a mean of both in between: first steps are often the longest.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from prunerecover.display.messages import in_words

LATE = 0.1  # of the time that a stage or its last step has taken: what is left of it once it is overdue


@dataclass
class Stage:
    """One stage.

    Attributes:
        description: What is done.
        total: Number of its steps; None: nobody knows.
        expected: Seconds that it takes, as far as is known before; None: nobody knows.
        started: When it began, by the monotonic clock.
        done: Number of steps that are done.
        moved: When the last of them was done.
    """

    description: str
    total: int | None = None
    expected: float | None = None
    started: float = field(default_factory=time.monotonic)
    done: int = 0
    moved: float = 0.0

    def advance(self) -> None:
        """Note that a step is done."""
        self.done, self.moved = self.done + 1, time.monotonic()

    @property
    def count(self) -> str:
        """Steps that are done, of all; empty if their number is not known."""
        return "" if self.total is None else f"{self.done}/{self.total}"

    def left(self, now: float, inside: float | None) -> float | None:
        """Return the seconds left; None if nobody knows.

        Args:
            now: Time by the monotonic clock.
            inside: Seconds left of the stage inside it; None: there is none, or nobody knows.
        """
        spent, seen = now - self.started, self._by_pace(now, inside)
        if self.expected is None:
            return seen
        expected = max(self.expected - spent, LATE * spent, inside or 0.0)
        if seen is None or self.total is None:
            return expected
        trust = min(self.done / self.total, 1.0)
        return trust * seen + (1 - trust) * expected

    def _by_pace(self, now: float, inside: float | None) -> float | None:
        if not self.total:
            return None
        if self.done:
            each, since = (self.moved - self.started) / self.done, now - self.moved
            return max(each * max(self.total - self.done, 0) - since, LATE * since, inside or 0.0)
        spent = now - self.started
        return None if inside is None else self.total * (spent + inside) - spent


@dataclass
class Stages:
    """All stages that are going on, from the outermost to the innermost; a thread of its own may read them."""

    under_way: list[Stage] = field(default_factory=list)

    @property
    def counted(self) -> Stage:
        """The outermost stage of known length, which says when all is done, or else the innermost one."""
        stages = tuple(self.under_way)
        return next((stage for stage in stages if stage.total is not None), stages[-1])

    @property
    def said(self) -> str:
        """What is said of all of them: the outermost one, and the one whose steps are counted."""
        return ": ".join(dict.fromkeys((self.under_way[0].description, self.counted.description)))

    def state(self) -> tuple[Stage, float, float | None]:
        """Return the outermost stage of a known end, the seconds that it has taken, and those that it has left.

        Where no stage has one, it is the outermost stage, and nobody knows what it has left.
        """
        stages, now, left = tuple(self.under_way), time.monotonic(), None
        known = stages[0]
        for stage in reversed(stages):
            own = stage.left(now, left)
            if own is not None:
                known, left = stage, own
        return known, now - known.started, left

    def __str__(self) -> str:
        """Return a line about all that is going on."""
        count, (known, spent, left) = self.counted.count, self.state()
        said = f"{self.said} ({count})" if count else self.said
        if left is None:
            return f"{said}, {in_words(spent)} so far"
        of = "" if known.expected is not None or known is self.under_way[0] else " of this stage"
        return f"{said}, {spent / (spent + left or 1):.0%}{of} done, about {in_words(left)}{of} left"
