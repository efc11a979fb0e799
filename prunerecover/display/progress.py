"""Progress of long searches: a single bar for the whole search, with stages, and the time left where known.

Without a terminal, or beside a display that cannot share the terminal, lines replace the bar. Of several processes, a
single one shows progress.
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
    """The running search with its display."""

    stages: Stages
    display: Bar | Lines


_SEARCH: ContextVar[_Search | Literal["hidden"] | None] = ContextVar("_SEARCH", default=None)


@contextmanager
def progress(
    description: str, total: int | None = None, *, expected: float | None = None, bar: bool = True
) -> Iterator[Callable[[], None]]:
    """Show a stage inside a `with` block; yields the function that advances the stage by a step.

    A stage that begins inside belongs to the same search and shares the bar: the bar names the outermost stage, and
    counts the steps of the outermost stage of known length. Ranks other than 0, and code inside `hidden`, show no
    progress.

    Args:
        description: Name of the stage.
        total: Number of steps; None: unknown.
        expected: Expected seconds, including inner stages; None: unknown.
        bar: Whether a search that begins here may show a bar; else the search logs lines.

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


def stage_under_way() -> str:
    """Return the description of the innermost running stage; empty outside of a search, and where progress is hidden.

    >>> with progress("planning"), progress("ranking", 2):
    ...     stage_under_way()
    'ranking'
    """
    search = _SEARCH.get()
    return search.stages.under_way[-1].description if isinstance(search, _Search) else ""


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
    """Leave the terminal to another display inside a `with` block, such as a Trainer's bar; lines replace the bar.

    Also a decorator, for functions of the user.

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
    """Return a started display: a bar, if allowed and if a terminal has room for the bar, else lines."""
    if bar:
        state = random.getstate()  # the import of rich draws a random number, and must not change a search's numbers
        from rich import get_console
        from rich.errors import LiveError

        from prunerecover.display.bar import Bar

        random.setstate(state)
        if get_console().is_interactive:
            shown = Bar(stages)
            with suppress(LiveError):  # raised by rich before 14.1 beside another running display
                shown.start()
                return shown
    lines = Lines(stages)
    lines.start()
    return lines
