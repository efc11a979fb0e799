"""A terminal, and the messages of the package."""

from __future__ import annotations

import io
import logging
import time

import pytest
import rich
from rich.console import Console

from prunerecover.display import lines


@pytest.fixture
def terminal(monkeypatch):
    """Return a console that poses as a terminal."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(rich, "_console", console)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return console.file


@pytest.fixture
def said(monkeypatch, caplog):
    """Return a function that waits for a number of the package's messages, with a progress line every 20 ms."""
    monkeypatch.setattr(lines, "EVERY", 0.02)
    caplog.set_level(logging.INFO, "prunerecover")

    def messages(number=0):
        while len(found := [one.getMessage() for one in caplog.records if one.name == "prunerecover"]) < number:
            time.sleep(0.01)
        return found

    return messages
