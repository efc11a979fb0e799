"""Nested stages of a long search: the shown stage, the progress of all stages, and the time left.

A stage of known length tells the time left by its own pace. A stage with an expectation starts from the expectation and
moves to its own pace with the share of finished steps: first steps are often the longest.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from prunerecover.display.messages import in_words

LATE = 0.1  # time left of an overdue stage or step, as a share of the time spent


@dataclass
class Stage:
    """One stage.

    Attributes:
        description: Name of the work.
        total: Number of steps; None: unknown.
        expected: Expected seconds; None: unknown.
        started: Time of the start, by the monotonic clock.
        done: Number of finished steps.
        moved: Time of the last finished step.
    """

    description: str
    total: int | None = None
    expected: float | None = None
    started: float = field(default_factory=time.monotonic)
    done: int = 0
    moved: float = 0.0

    def advance(self) -> None:
        """Note a finished step."""
        self.done, self.moved = self.done + 1, time.monotonic()

    @property
    def count(self) -> str:
        """Finished steps of all steps; empty if the number of steps is unknown."""
        return "" if self.total is None else f"{self.done}/{self.total}"

    def left(self, now: float, inside: float | None) -> float | None:
        """Return the seconds left; None if unknown.

        Args:
            now: Time by the monotonic clock.
            inside: Seconds left of the inner stage; None: no inner stage, or unknown.
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
    """All running stages, from the outermost to the innermost; a separate thread may read the stages."""

    under_way: list[Stage] = field(default_factory=list)

    @property
    def counted(self) -> Stage:
        """The outermost stage of known length, which ends last, else the innermost stage."""
        stages = tuple(self.under_way)
        return next((stage for stage in stages if stage.total is not None), stages[-1])

    @property
    def said(self) -> str:
        """Description of all stages: the outermost stage, and the stage with counted steps."""
        return ": ".join(dict.fromkeys((self.under_way[0].description, self.counted.description)))

    def state(self) -> tuple[Stage, float, float | None]:
        """Return the outermost stage of a known end, with the seconds spent and the seconds left.

        Without a stage of a known end, return the outermost stage, and None for the seconds left.
        """
        stages, now, left = tuple(self.under_way), time.monotonic(), None
        known = stages[0]
        for stage in reversed(stages):
            own = stage.left(now, left)
            if own is not None:
                known, left = stage, own
        return known, now - known.started, left

    def __str__(self) -> str:
        """Return a line on all running stages."""
        count, (known, spent, left) = self.counted.count, self.state()
        said = f"{self.said} ({count})" if count else self.said
        if left is None:
            return f"{said}, {in_words(spent)} so far"
        of = "" if known.expected is not None or known is self.under_way[0] else " of this stage"
        return f"{said}, {spent / (spent + left or 1):.0%}{of} done, about {in_words(left)}{of} left"
