"""Fixtures for tests of the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, for commands that write into it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _no_arguments_of_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the command line, which Lightning reads in any case."""
    monkeypatch.setattr(sys, "argv", ["prunerecover"])
