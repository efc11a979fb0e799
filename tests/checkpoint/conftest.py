"""A Lightning checkpoint of a pruned run."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases.files.lightning_files import Classifier, prune, save, stirred


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a Trainer's file of a pruned `Classifier`."""
    module = stirred(Classifier())
    prune(module)
    return save(module, tmp_path / "last.ckpt")
