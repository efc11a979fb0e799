"""Notebooks run from top to bottom: docs/notebooks/*.ipynb are written with their outputs.

    python -m benchmarks.project.notebooks

Each runs in an empty folder, without a network. Results, tables, pictures and printed lines are kept; warnings, logs
and bars are not, and paths are relative to that folder. About five minutes on a core; needs `pip install .[docs]`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.runner.benchmark import command_line
from benchmarks.runner.rows import ROOT
from prunerecover.files.atomic import write_text

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
LONGEST = 900  # seconds of a cell


def executed(path: Path) -> str:
    """Return the text of a notebook with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    metadata = dict(notebook.metadata)
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=LONGEST, record_timing=False, resources=place)
        client.execute(env={**os.environ, **ENVIRONMENT})
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [kept(output, folder) for output in cell.outputs if is_kept(output)]
    notebook.metadata = metadata  # without the version of Python
    text: str = nbformat.writes(notebook)  # type: ignore[no-untyped-call]
    return text.rstrip() + "\n"


def is_kept(output: Any) -> bool:
    """Whether an output tells a reader more than how far a fit has come."""
    return output.output_type != "stream" or (output.name == "stdout" and "\r" not in output.text)


def kept(output: Any, folder: str) -> Any:
    """Return an output with paths relative to the folder of the run."""
    if output.output_type == "stream":
        output.text = output.text.replace(f"{folder}/", "")
        return output
    for kind, text in output.get("data", {}).items():
        if isinstance(text, str) and kind.startswith("text/"):
            output.data[kind] = text.replace(f"{folder}/", "")
    return output


def main() -> None:
    """Run the chosen notebooks, and write each."""
    parser = command_line(__doc__)
    names = [path.stem for path in NOTEBOOKS]
    parser.add_argument("--notebooks", nargs="*", choices=names, default=names)
    for path in NOTEBOOKS:
        if path.stem in parser.parse_args().notebooks:
            write_text(path, executed(path))
            print(f"Wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
