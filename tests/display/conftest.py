"""A terminal, and the messages of the package."""

from __future__ import annotations

import io
import logging

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
    """Return the package's messages, with progress lines every 20 milliseconds."""
    monkeypatch.setattr(lines, "EVERY", 0.02)
    caplog.set_level(logging.INFO, "prunerecover")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "prunerecover"]
