"""Who may import whom: engine <- callbacks <- recipes; read from the source by AST, so nothing needs importing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FRONT_DOOR = {"__init__.py", "__main__.py"}  # re-export and start all layers, lazily
LAYERS = {
    "engine": (
        ROOT / "prunerecover",
        ("lightning", "pytorch_lightning", "prunerecover.callbacks", "prunerecover.recipes"),
    ),
    "callbacks": (ROOT / "callbacks", ("prunerecover.recipes",)),
    "recipes": (ROOT / "recipes", ()),
}
EVERYWHERE = ("callbacks", "recipes", "configs", "ultralytics")  # twin modules; AGPL code


def python_files(folder: Path) -> list[Path]:
    links = {p for p in folder.iterdir() if p.is_symlink()}
    return sorted(p for p in folder.rglob("*.py") if not links & set(p.parents))


def imported_modules(source: str) -> list[str]:
    """Every absolute module named by an import statement, at any depth; `from a import b` counts as a and a.b."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append("." * node.level + (node.module or ""))
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def violations(source: str, forbidden: tuple[str, ...]) -> list[str]:
    names = imported_modules(source)
    return [name for name in names if name.startswith(".") or any(f"{name}.".startswith(f"{f}.") for f in forbidden)]


@pytest.mark.parametrize("layer", LAYERS)
def test_layer_imports_only_what_is_below_it(layer: str) -> None:
    folder, forbidden = LAYERS[layer]
    files = python_files(folder)
    assert files
    for path in files:
        if path.parent == ROOT / "prunerecover" and path.name in FRONT_DOOR:
            continue
        assert not violations(path.read_text(), forbidden + EVERYWHERE), path


def test_engine_files_exclude_the_linked_folders() -> None:
    names = {p.relative_to(ROOT).parts[1] for p in python_files(ROOT / "prunerecover")}
    assert not names & {"callbacks", "recipes", "configs"}


def test_configs_only_name_classes() -> None:
    assert [p.name for p in (ROOT / "configs").glob("*.py")] == ["__init__.py"]
    assert imported_modules((ROOT / "configs" / "__init__.py").read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import lightning.pytorch as pl",
        "def f():\n    from lightning.pytorch import Trainer",
        "from prunerecover import callbacks",
        "from prunerecover.recipes.cli import main",
        "from . import plan",
    ],
)
def test_a_violation_is_found_wherever_it_hides(source: str) -> None:
    assert violations(source, LAYERS["engine"][1])
