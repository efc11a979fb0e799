"""Progress of long searches: one bar for the whole of a search, with its stages, and the time left where it is known.

Without a terminal, or where a display holds it that cannot be shared, lines take the place of the bar. Shown by one
process of several.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from prunerecover.display.lines import Lines
from prunerecover.display.messages import on_first_rank
from prunerecover.display.stages import Stage, Stages

if TYPE_CHECKING:
    from prunerecover.display.bar import Bar


@dataclass
class _Search:
    """The search that is going on, and what shows it."""

    stages: Stages
    display: Bar | Lines


_SEARCH: ContextVar[_Search | Literal["hidden"] | None] = ContextVar("_SEARCH", default=None)


@contextmanager
def progress(
    description: str, total: int | None = None, *, expected: float | None = None, bar: bool = True
) -> Iterator[Callable[[], None]]:
    """Show a stage inside a `with` block; yields the function that moves it on by one step.

    What begins inside is a stage of the same search, and shares its bar: this says what the outermost stage is, and
    counts the steps of the outermost one of known length. Nothing is shown by ranks other than 0, or inside `hidden`.

    Args:
        description: The stage.
        total: Number of its steps; None: nobody knows.
        expected: Seconds that it is expected to take, all that is inside included; None: nobody knows.
        bar: Whether a search that begins here may show a bar; else it says the same in lines.

    >>> with progress("planning"), progress("ranking", 2) as advance:
    ...     advance()
    """
    search = _SEARCH.get()
    if search == "hidden" or (search is None and not on_first_rank()):
        yield lambda: None
        return
    stage = Stage(description, total, expected)
    stages = Stages() if search is None else search.stages
    stages.under_way.append(stage)
    try:
        with _begun(stages, bar) if search is None else nullcontext(search) as own:
            own.display.refresh()
            yield stage.advance
            own.display.refresh()
    finally:
        stages.under_way.pop()


@contextmanager
def hidden(hide: bool = True) -> Iterator[None]:
    """Show no progress inside a `with` block, if `hide`.

    >>> with hidden(), progress("ranking", 2):
    ...     pass
    """
    token = _SEARCH.set("hidden" if hide else _SEARCH.get())
    try:
        yield
    finally:
        _SEARCH.reset(token)


@contextmanager
def beside_other_displays() -> Iterator[None]:
    """Leave the terminal inside a `with` block to others, such as the bar of a Trainer: lines take the bar's place.

    Also a decorator, of functions of the user's.

    >>> with progress("recovering", 2), beside_other_displays():
    ...     pass
    """
    search = _SEARCH.get()
    if not isinstance(search, _Search) or isinstance(search.display, Lines):
        yield
        return
    search.display.stop()
    search.display = _started(search.stages, bar=False)
    try:
        yield
    finally:
        search.display.stop()
        search.display = _started(search.stages, bar=True)


@contextmanager
def _begun(stages: Stages, bar: bool) -> Iterator[_Search]:
    search = _Search(stages, _started(stages, bar))
    token = _SEARCH.set(search)
    try:
        yield search
    finally:
        _SEARCH.reset(token)
        search.display.stop()


def _started(stages: Stages, bar: bool) -> Bar | Lines:
    """Return a display that has started: a bar, if it may be one and there is a terminal that has room for it."""
    if bar:
        state = random.getstate()  # importing rich draws a random number, which must not change what a search draws
        from rich import get_console
        from rich.errors import LiveError

        from prunerecover.display.bar import Bar

        random.setstate(state)
        if get_console().is_interactive:
            shown = Bar(stages)
            with suppress(LiveError):  # of rich before 14.1, where another display is running
                shown.start()
                return shown
    lines = Lines(stages)
    lines.start()
    return lines
