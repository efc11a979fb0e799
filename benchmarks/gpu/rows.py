"""Rows of benchmarks that have minutes: made until the time is over, kept as they are made, and read back.

A machine that is lent comes bare and goes back with its disk, so rows are written into a folder that the caller names,
and those of earlier runs are read from the committed results, too.
"""

from __future__ import annotations

import argparse
import gc
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.data.real import CHECKPOINTS, RESULTS, parser, write
from benchmarks.depth.graph_depth_rows import add, rows_so_far, without_samples

Row = dict[str, Any]
Work = tuple[Row, Callable[[], Row]]  # what names a row, and what makes the rest of it


class OutOfTime(BaseException):
    """The end of a time box; no Exception, so that nothing on the way takes it for an error and goes on."""


@dataclass
class TimeBox:
    """A number of minutes, from when it is made.

    Attributes:
        minutes: In all.
        longest: Seconds that the longest piece of work has taken; another one is not begun with less.
    """

    minutes: float
    started: float = field(default_factory=time.monotonic)
    longest: float = 0.0

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return 60 * self.minutes - (time.monotonic() - self.started)

    @contextmanager
    def piece(self, most: float = float("inf")) -> Iterator[None]:
        """Do a piece of work, and end it when its seconds or all minutes are over.

        Raises:
            OutOfTime: If they are.
        """
        if self.left <= min(self.longest, most):
            raise OutOfTime
        before, began = signal.signal(signal.SIGALRM, _over), time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, min(self.left, most))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            self.longest = max(self.longest, time.monotonic() - began)


def _over(number: int, frame: FrameType | None) -> None:
    raise OutOfTime


def command_line(description: str | None, minutes: float) -> argparse.ArgumentParser:
    """Return the command line of a benchmark that has minutes."""
    options = parser(description)
    options.add_argument("--minutes", type=float, default=minutes, help="rows that no longer fit in are left, and said")
    options.add_argument("--out", type=Path, help="folder of the rows and the page; by default docs/results")
    options.add_argument("--rehearse", action="store_true", help="the same steps with hardly any data, on any machine")
    return options


def folders(options: argparse.Namespace) -> tuple[Path, ...]:
    """Return the folder that rows are written to, and others they are read from; a rehearsal keeps to its own."""
    if options.rehearse:
        return (options.out or CHECKPOINTS / "rehearsal",)
    return tuple(dict.fromkeys((options.out or RESULTS, RESULTS)))


def make_rows(name: str, options: argparse.Namespace, work: Iterable[Work], most: float = float("inf")) -> list[Row]:
    """Make the rows that are missing while there is time, and return all; one that fails is left, and said.

    Args:
        name: Of the benchmark.
        options: Of `command_line`.
        work: In order, most telling first.
        most: Seconds that a row may take; one that takes longer says so instead.
    """
    box = TimeBox(options.minutes)
    gc.freeze()  # each timing collects garbage first, and need not look through all that is imported
    own, *others = (folder / f"{name}.rows.jsonl" for folder in folders(options))
    own.parent.mkdir(parents=True, exist_ok=True)
    left = []
    for about, make in work:
        if any(rows_so_far(path, **about) for path in (own, *others)):
            continue
        try:
            with box.piece(most):
                made = {**about, **make()}
        except OutOfTime:
            if box.left < most:
                left.append(" ".join(map(str, about.values())))
                continue
            made = {**about, "over": most}
        except Exception:  # the rows behind it are worth the minutes that are left
            traceback.print_exc()
            left.append(f"{' '.join(map(str, about.values()))} (failed)")
            continue
        print(without_samples(add(made, own)), flush=True)
    if left:
        print(f"{len(left)} rows are left: {'; '.join(left)}.", flush=True)
    return [row for path in (own, *others) for row in rows_so_far(path)]


def save(name: str, options: argparse.Namespace, rows: Sequence[Row], page: str) -> None:
    """Write the page and its JSON beside the rows."""
    write(name, {"rows": [without_samples(row) for row in rows]}, page, folders(options)[0])
