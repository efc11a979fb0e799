"""Separate process for calls; crashes and delays do no harm to the caller."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any


class Lost(Exception):
    """The process died or took too long, as the message tells."""


class Late(Lost):
    """The function took too long."""


class Worker:
    """Process for many calls; started on demand, and again after a loss.

    Args:
        prepare: Function called in the process first.
    """

    def __init__(self, prepare: Callable[[], object] | None = None) -> None:
        self._prepare = prepare
        self._pool: ProcessPoolExecutor | None = None
        self._process: Any = None

    def call(self, function: Callable[..., Any], *args: Any, timeout: float) -> Any:
        """Return the result of a module's function in the process.

        Args:
            function: Function of a module, sent by name.
            args: Picklable arguments; the result is picklable, too.
            timeout: Seconds; starting the process does not count.

        Raises:
            Lost: If the process ends, or the function exceeds its time.
            RuntimeError: If the function raises.
        """
        future = self.start().submit(function, *args)
        try:
            return future.result(timeout)
        except TimeoutError:
            self.stop()
            raise Late(f"took more than {timeout:.0f} s") from None
        except BrokenProcessPool:
            self.stop()  # first: the pool collects the exit code, and a second that waits for it could take it away
            code = self._process.exitcode
            raise Lost(f"the process crashed with exit code {code}") from None
        except Exception as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def start(self) -> ProcessPoolExecutor:
        """Start the process on demand; return the pool."""
        if self._pool is None:
            os.environ.setdefault("OMP_NUM_THREADS", "1")  # the process reads it when it starts
            before = multiprocessing.active_children()
            self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), self._prepare)
            self._pool.submit(int).result()
            self._process = next(child for child in multiprocessing.active_children() if child not in before)
        return self._pool

    def stop(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._process.kill()
            self._pool.shutdown()
        self._pool = None
