"""Support of features by family of models: every cell runs on a small model, and docs/support.md is written.

    python -m benchmarks.project.support_matrix

The rows, the columns and the expected result of each cell are in `tests/cases/support`; the tests run a part of the
cells. A cell with another result stops the page. Six minutes on one core; no data or weights are needed.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
from rich.progress import track

from benchmarks.runner.benchmark import command_line
from benchmarks.runner.rows import ROOT
from prunerecover.cost.environment import versions

PAGE = ROOT / "docs" / "support.md"
FURTHER = ("torchvision", "onnx", "onnxruntime")


def main() -> None:
    """Run all cells, and write the page if each is as the table says."""
    command_line(__doc__).parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    from cases.support.page import markdown

    torch.set_num_threads(1)
    if wrong := surprises():
        sys.exit("Correct tests/cases/support/families.py, or what is broken:\n" + "\n".join(wrong))
    installed = versions() | {name: version(name) for name in FURTHER}
    PAGE.write_text(markdown("Versions: " + ", ".join(f"{name} {number}" for name, number in installed.items()) + "."))
    print(f"Wrote {PAGE.relative_to(ROOT)}")


def surprises() -> list[str]:
    """Return a line for each cell with an unexpected result."""
    from cases.support.checks import COLUMNS, outcome
    from cases.support.families import FAMILIES

    rows = FAMILIES.items()
    cells = [(name, column) for name, family in rows for column in COLUMNS if family.reason(column) is not None]
    found = []
    for name, column in track(cells, "cells"):
        with tempfile.TemporaryDirectory() as folder:
            message = outcome(FAMILIES[name], column, Path(folder))
        if not FAMILIES[name].is_expected(column, message):
            found.append(f"- {name}, {column}: {message or 'it works, and the table says no'}")
    return found


if __name__ == "__main__":
    main()
