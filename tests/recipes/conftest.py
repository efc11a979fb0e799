"""What tests of the command line share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, for commands that write where they are called."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _no_arguments_of_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning looks for arguments of the command line, whatever it is given."""
    monkeypatch.setattr(sys, "argv", ["prunerecover"])
