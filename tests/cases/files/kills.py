"""Process that dies in the middle of writing, as by `kill -9`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

KILLED = 9


def killed_at_rename(number: int, act: Callable[[], Any]) -> bool:
    """Run `act` in a child process, killed before rename `number`; return whether so many came."""
    child = os.fork()
    if child == 0:
        seen = 0

        def counted(rename: Callable[..., Any]) -> Callable[..., Any]:
            def rename_or_die(*args: Any) -> Any:
                nonlocal seen
                if seen == number:
                    os._exit(KILLED)
                seen += 1
                return rename(*args)

            return rename_or_die

        Path.replace, Path.rename = counted(Path.replace), counted(Path.rename)  # type: ignore[method-assign]
        try:
            act()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == KILLED
