"""A process that calls functions for another one, which it can crash or keep waiting without harm."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any


class Lost(Exception):
    """The process died or took too long; the message says which."""


class Late(Lost):
    """The function took too long."""


class Worker:
    """One process for many calls; it is started when it is needed, and anew after it was lost.

    Args:
        prepare: Is called there before anything else.
    """

    def __init__(self, prepare: Callable[[], object] | None = None) -> None:
        self._prepare = prepare
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    def call(self, function: Callable[..., Any], *args: Any, timeout: float) -> Any:
        """Return what a function of some module returns there.

        Args:
            function: Not a local one: its name is sent.
            args: Can be pickled, as can what it returns.
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
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def start(self) -> Connection:
        """Start the process, if there is none; return what it is reached by."""
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
