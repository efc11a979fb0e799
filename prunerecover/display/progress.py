"""Progress of long searches: one line that names the stage at once, with a bar and the time left where they are known.

On a terminal, shown by one process of several.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

# What is shown now: nothing, so that a line can start; a line that an inner stage may take over; or nothing else may.
_SHOWN: ContextVar[tuple[Progress, TaskID] | Literal["free", "taken"]] = ContextVar("_SHOWN", default="free")


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Show a stage inside a `with` block; yields the function that moves its bar on by one.

    A stage of unknown length, without a total, gives its line to the stages inside it while they last. Inside a bar
    nothing is shown: it says when all is done. Nothing is shown either when the output is no terminal, by ranks other
    than 0, where the terminal is taken by a display that cannot be shared, or inside `hidden`.

    Args:
        description: The stage.
        total: How many times it will be moved on; None: nobody knows.

    >>> with progress("planning"), progress("ranking", 2) as advance:
    ...     advance()
    """
    with ExitStack() as stack:
        yield _start(stack, description, total)


@contextmanager
def hidden(hide: bool = True) -> Iterator[None]:
    """Show no progress inside a `with` block, if `hide`.

    >>> with hidden(), progress("ranking", 2):
    ...     pass
    """
    token = _SHOWN.set("taken" if hide else _SHOWN.get())
    try:
        yield
    finally:
        _SHOWN.reset(token)


def _may_show() -> bool:
    first = all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK"))
    return first and _console().is_terminal


def _console() -> Console:
    """Return rich's console. Importing it draws a random number, which must not change what a search is seeded with."""
    state = random.getstate()
    from rich import get_console

    console = get_console()
    random.setstate(state)
    return console


def _start(stack: ExitStack, description: str, total: int | None) -> Callable[[], None]:
    outer = _SHOWN.get()
    if outer == "taken" or (outer == "free" and not _may_show()):
        return _nothing
    display = _new_display(stack) if outer == "free" else outer[0]
    if display is None:
        return _nothing
    if outer != "free":
        display.update(outer[1], visible=False)
        stack.callback(display.update, outer[1], visible=True)
    task = display.add_task(description, total=total)
    display.refresh()
    stack.callback(_end, display, task)
    token = _SHOWN.set((display, task) if total is None else "taken")
    stack.callback(_SHOWN.reset, token)
    return lambda: display.advance(task)


def _end(display: Progress, task: TaskID) -> None:
    display.refresh()
    display.remove_task(task)


def _new_display(stack: ExitStack) -> Progress | None:
    """Return a display that has started; None if another one holds the terminal."""
    from rich.errors import LiveError
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining
    from rich.text import Text

    class Count(MofNCompleteColumn):
        def render(self, task: Task) -> Text:
            return Text() if task.total is None else super().render(task)

    columns = (TextColumn("{task.description}"), BarColumn(), Count(), TimeElapsedColumn(), Remaining())
    display = Progress(*columns, console=_console(), transient=True)
    try:
        return stack.enter_context(display)
    except LiveError:
        return None


def _nothing() -> None:
    """Advance a bar that is not shown."""
