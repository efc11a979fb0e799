"""What tests of the command line share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, for commands that write where they are called; no arguments of pytest are read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["prunerecover"])
    return tmp_path
