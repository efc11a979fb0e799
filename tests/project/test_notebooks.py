"""The notebooks run from top to bottom, without a network, and are kept without outputs."""

from __future__ import annotations

import re
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cases.paths import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
needed = pytest.mark.skipif(not (find_spec("nbformat") and find_spec("IPython")), reason="needs pip install .[docs]")
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_is_one_per_task() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"classification", "segmentation", "detection", "language"}


@each
def test_outputs_are_not_kept(path: Path) -> None:
    text = path.read_text()
    assert '"outputs": []' in text
    assert text.count('"outputs": []') == text.count('"outputs"') == text.count('"execution_count": null')


LESS = {
    r"max_epochs=\d+": "max_epochs=1",
    r"scene\(\) for _ in range\(\d+\)": "scene() for _ in range(16)",
    r"scenes\(\d+\)": "scenes(32)",
    r"calibration=\d+": "calibration=8",
    r"\"num_hidden_layers\": 6": '"num_hidden_layers": 3',
    r"max_new_tokens=80": "max_new_tokens=8",
}


@pytest.mark.slow
@needed
@each
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell, with fewer samples and epochs, in this process."""
    import nbformat

    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            exec(
                compile(reduce(lambda text, pair: re.sub(*pair, text), LESS.items(), cell.source), path, "exec"),
                namespace,
            )
    assert list(tmp_path.glob("*.onnx"))
    assert (tmp_path / "report" / "report.md").is_file()
