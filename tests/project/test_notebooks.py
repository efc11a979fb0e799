"""The notebooks run from top to bottom, without a network, and are kept with their outputs."""

from __future__ import annotations

import json
import re
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cases.paths import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
LARGEST = 300_000  # bytes
needed = pytest.mark.skipif(not (find_spec("nbformat") and find_spec("IPython")), reason="needs pip install .[docs]")
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_is_one_per_task() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"classification", "segmentation", "detection", "language"}


@each
def test_outputs_of_a_whole_run_are_kept(path: Path) -> None:
    """`python -m benchmarks.project.notebooks` writes them."""
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert not any(output.get("name") == "stderr" for output in outputs)
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 1
    assert not re.search(r"/(?:tmp|home|root|work|Users|private|var)/|site-packages|\\r", json.dumps(outputs))
    assert path.stat().st_size < LARGEST


@pytest.mark.slow
@needed
def test_a_notebook_is_executed(tmp_path: Path) -> None:
    """Bars, warnings and the folder of the run are left out of the outputs; a picture is kept."""
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook

    from benchmarks.project.notebooks import executed

    path = tmp_path / "n.ipynb"
    cells = ["import sys; print('bar', end='\\r')", "print('a warning', file=sys.stderr); print('told')"]
    cells += ["from pathlib import Path; Path('a').resolve()", "from prunerecover.display.style import new_figure"]
    nbformat.write(new_notebook(cells=[new_code_cell(cell) for cell in [*cells, "new_figure(1, 1)[0]"]]), path)
    bar, told, place, _, picture = (cell.outputs for cell in nbformat.reads(executed(path), 4).cells)
    assert bar == []
    assert [output.text for output in told] == ["told\n"]
    assert place[0].data["text/plain"] == "PosixPath('a')"
    assert picture[0].data["image/png"].startswith("iVBOR")


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
            shorter = reduce(lambda text, pair: re.sub(*pair, text), LESS.items(), cell.source)
            exec(compile(shorter, path, "exec"), namespace)
    assert list(tmp_path.glob("*.onnx"))
    assert (tmp_path / "report" / "report.md").is_file()
