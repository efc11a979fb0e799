"""A Lightning checkpoint of a pruned run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lightning.pytorch as pl
import pytest
from cases.files.lightning_files import Classifier, prune, save, stirred


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that stirs and prunes a module, and returns a Trainer's file of it."""

    def write(module: pl.LightningModule, case: str = "everything", merged: bool = False) -> Path:
        prune(stirred(module), case, merged=merged)
        return save(module, tmp_path / "last.ckpt")

    return write


@pytest.fixture
def file(saved: Callable[..., Path]) -> Path:
    """Return a Trainer's file of a pruned `Classifier`."""
    return saved(Classifier())
