"""Imports of the project, read from the source by AST, also inside functions and under TYPE_CHECKING."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("prunerecover", "callbacks", "recipes")
FRONT_DOOR = ("prunerecover", "prunerecover.__main__")  # re-export and start everything, lazily
Imports = Mapping[str, set[str]]


def python_files(folder: Path) -> list[Path]:
    """Return the Python files below a folder, without links to other folders."""
    links = {path for path in folder.iterdir() if path.is_symlink()}
    return sorted(path for path in folder.rglob("*.py") if not links & set(path.parents))


def module_name(path: Path) -> str:
    """Return the import name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    top = () if parts[0] == "prunerecover" else ("prunerecover",)
    return ".".join((*top, *parts)).removesuffix(".__init__")


@cache
def sources() -> Mapping[str, str]:
    """Return the text of every file of the project, by module name."""
    return {module_name(path): path.read_text() for folder in FOLDERS for path in python_files(ROOT / folder)}


@cache
def named_in(source: str) -> tuple[str, ...]:
    """Return every module in an import statement; `from a import b` counts as a and a.b."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append("." * node.level + (node.module or ""))
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(found)


def imports_of(files: Mapping[str, str]) -> Imports:
    """Return the files that each file imports; `from folder import file` is an import of the file."""
    found = {}
    for name, source in files.items():
        named = {module for module in named_in(source) if module in files}
        found[name] = {file for file in named if file != name and not any(f.startswith(f"{file}.") for f in named)}
    return found


def without_front_door(imports: Imports) -> Imports:
    """Return the imports without the package's entry files."""
    return {name: files - set(FRONT_DOOR) for name, files in imports.items() if name not in FRONT_DOOR}


def circle(imports: Imports) -> list[str]:
    """Return files, or folders, in a circle of imports; empty: there are none."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []
