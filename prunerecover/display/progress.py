"""Progress of long searches: a bar with the time left, on a terminal, shown by one process of several."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN: ContextVar[bool] = ContextVar("_SHOWN", default=False)


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar inside a `with` block; yields the function that moves it on by one.

    Inside another bar it shows nothing: the outer one says when all is done. Nothing is shown either when the output is
    no terminal, by ranks other than 0, or where the terminal is taken by a display that cannot be shared.

    >>> with progress("ranking", 2) as advance:
    ...     advance()
    """
    with ExitStack() as stack:
        yield _start(stack, description, total) if _may_show() else _nothing


def _may_show() -> bool:
    first = all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK"))
    return first and not _SHOWN.get() and _console().is_terminal


def _console() -> Console:
    """Return rich's console. Importing it draws a random number, which must not change what a search is seeded with."""
    state = random.getstate()
    from rich import get_console

    console = get_console()
    random.setstate(state)
    return console


def _start(stack: ExitStack, description: str, total: int) -> Callable[[], None]:
    from rich.errors import LiveError
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=_console(), transient=True)
    try:
        stack.enter_context(bar)
    except LiveError:
        return _nothing
    task = bar.add_task(description, total=total)
    token = _SHOWN.set(True)
    stack.callback(_SHOWN.reset, token)
    return lambda: bar.advance(task)


def _nothing() -> None:
    """Advance a bar that is not shown."""
