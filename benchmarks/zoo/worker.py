"""Process that calls functions for another process, whose crashes and delays do no harm there."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
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
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    def call(self, function: Callable[..., Any], *args: Any, timeout: float) -> Any:
        """Return the result of a module-level function, called in the process.

        Args:
            function: Module-level function, sent by name.
            args: Picklable arguments; the result has to be picklable, too.
            timeout: Seconds; starting the process does not count.

        Raises:
            Lost: If the process ends, or the function does not in time.
            RuntimeError: If the function raises.
        """
        connection = self.start()
        try:
            connection.send((function, args))
            if not connection.poll(timeout):
                self.stop()
                raise Late(f"took more than {timeout:.0f} s")
            error, result = connection.recv()
        except (EOFError, OSError):
            assert self._process is not None
            self._process.join()
            code = self._process.exitcode
            self.stop()
            raise Lost(f"the process crashed with exit code {code}") from None
        if error is not None:
            raise RuntimeError(error)
        return result

    def stop(self) -> None:
        """End the process, if any."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def start(self) -> Connection:
        """Start the process if needed; return the connection to it."""
        if self._connection is not None:
            return self._connection
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._prepare), daemon=True)
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # the process reads it when it starts
        self._process.start()
        theirs.close()
        self._connection.recv()
        return self._connection


def _serve(connection: Connection, prepare: Callable[[], object] | None) -> None:
    if prepare is not None:
        prepare()
    with suppress(EOFError, OSError):  # whoever started it has gone
        connection.send(None)
        while True:
            function, args = connection.recv()
            try:
                answer = (None, function(*args))
            except Exception as error:
                answer = (f"{type(error).__name__}: {error}", None)
            connection.send(answer)
