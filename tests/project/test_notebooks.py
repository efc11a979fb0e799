"""The notebooks run from top to bottom, without a network, and are kept without outputs."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from cases.paths import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
needed = pytest.mark.skipif(not (find_spec("nbclient") and find_spec("ipykernel")), reason="needs pip install .[docs]")
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_is_one_per_task() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"classification", "segmentation", "detection", "language"}


@each
def test_outputs_are_not_kept(path: Path) -> None:
    text = path.read_text()
    assert '"outputs": []' in text
    assert text.count('"outputs": []') == text.count('"outputs"') == text.count('"execution_count": null')


@pytest.mark.slow
@needed
@each
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert list(tmp_path.glob("*.onnx"))
    assert (tmp_path / "report" / "report.md").is_file()
