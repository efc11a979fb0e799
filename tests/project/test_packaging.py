"""Installations are complete: from a checkout, from a wheel, and from a tree whose links became text files."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cases.paths import ROOT

import prunerecover

LINKS = ("callbacks", "configs", "recipes")
SOURCES = ("prunerecover", "callbacks", "configs", "recipes")
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


def output_of(*command: str | Path, **how: Any) -> str:
    """Run a command that ends well, and return what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout


def copy_tree(target: Path, links: str) -> Path:
    """Copy the files of a build; links as `symlink`, or as the `text` files that git writes without link support."""
    for folder in SOURCES:
        ignore = shutil.ignore_patterns("__pycache__", *(LINKS if folder == "prunerecover" else ()))
        shutil.copytree(ROOT / folder, target / folder, ignore=ignore)
    for name in FILES:
        shutil.copy(ROOT / name, target / name)
    for name in LINKS:
        link = target / "prunerecover" / name
        if links == "symlink":
            link.symlink_to(f"../{name}")
        else:
            link.write_text(f"../{name}")
    return target


def expected_files() -> set[str]:
    """Return every module, recipe and marker, by its path in the installed package."""
    found = {"prunerecover/py.typed"}
    for folder in SOURCES:
        base = Path("prunerecover") if folder == "prunerecover" else Path("prunerecover") / folder
        for path in (ROOT / folder).rglob("*"):
            inside = path.relative_to(ROOT / folder)
            linked = folder == "prunerecover" and inside.parts[0] in LINKS
            if path.suffix in (".py", ".yaml") and not linked:
                found.add((base / inside).as_posix())
    return found


def built(tree: Path, what: str, output: Path) -> Path:
    """Build a wheel or an sdist."""
    build = f"from setuptools import build_meta; build_meta.build_{what}({str(output)!r})"
    output_of(sys.executable, "-c", build, cwd=tree)
    return next(output.iterdir())


@pytest.mark.parametrize("links", ["symlink", pytest.param("text", marks=pytest.mark.slow)])
def test_wheel_holds_every_module_recipe_and_marker(links: str, tmp_path: Path) -> None:
    names = zipfile.ZipFile(built(copy_tree(tmp_path / "tree", links), "wheel", tmp_path / "wheel")).namelist()
    assert {name for name in names if ".dist-info/" not in name} == expected_files()
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_the_sdist_holds_everything_and_runs_outside_the_checkout(tmp_path: Path) -> None:
    sdist = built(copy_tree(tmp_path / "tree", "symlink"), "sdist", tmp_path / "sdist")
    shutil.unpack_archive(sdist, tmp_path / "unpacked", filter="data")
    (tree,) = (tmp_path / "unpacked").iterdir()
    wheel = zipfile.ZipFile(built(tree, "wheel", tmp_path / "wheel"))
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected_files()
    wheel.extractall(tmp_path / "site")
    script = (
        "from prunerecover.recipes.quickstart import Recipe, run_quickstart, __file__ as place; print(place); "
        "run_quickstart(seeds=1, recipe=Recipe(epochs=1, recovery_epochs=1, remove={'attention': 1}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    printed = output_of(sys.executable, "-P", "-c", script, cwd=tmp_path, env=environment)
    assert printed.startswith(str(tmp_path / "site"))
    assert "Before and after pruning" in next(tmp_path.rglob("report.md")).read_text()


def test_links_of_the_source_tree_are_relative() -> None:
    for name in LINKS:
        link = ROOT / "prunerecover" / name
        text = os.readlink(link) if link.is_symlink() else link.read_text().strip()
        assert text == f"../{name}"


@pytest.mark.slow
def test_editable_install_from_a_tree_with_text_links(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "tree", "text")
    venv = tmp_path / "venv"
    output_of(sys.executable, "-m", "venv", "--system-site-packages", venv)
    site = next(p for p in sys.path if p.endswith("site-packages"))
    environment = {**os.environ, "PYTHONPATH": site}
    install = ("-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "-e")
    output_of(venv / "bin" / "python", *install, tree, env=environment)
    assert "digits_vit_depth" in output_of(venv / "bin" / "prunerecover", "--help", cwd=tmp_path, env=environment)


def test_public_names_are_what_their_modules_define_and_no_module_is_named_like_one() -> None:
    """Importing such a module would bind its name on the package, in the place of the public name."""
    for name in {*prunerecover.__all__} - {"__version__"}:
        home = importlib.import_module(prunerecover._HOME[name])
        assert getattr(prunerecover, name) is getattr(home, name)
        assert name in dir(prunerecover)
        assert importlib.util.find_spec(f"prunerecover.{name}") is None


def test_unknown_name_is_an_attribute_error_that_lists_the_names() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'prune_everything'. Public names: .*DepthPrune"):
        prunerecover.prune_everything  # noqa: B018


@pytest.mark.slow
def test_what_is_seldom_needed_is_imported_last() -> None:
    """In one process: the package loads no library, planning no torch-pruning, and figures no pyplot."""
    heavy = ("torch", "torch.distributed", "lightning", "timm", "transformers", "numpy", "matplotlib")
    script = f"""
import sys, prunerecover
print([name for name in {heavy} if name in sys.modules])
import prunerecover.planning.plan_width, prunerecover.report.curves, prunerecover.plan.figure, prunerecover.width.figure
print([name for name in ("torch_pruning", "matplotlib.pyplot") if name in sys.modules])
"""
    assert output_of(sys.executable, "-c", script, cwd=ROOT).split() == ["[]", "[]"]


@pytest.mark.slow
def test_the_engine_and_its_callbacks_need_no_package_of_recipes(tmp_path: Path) -> None:
    """In a process that cannot find these packages; torchmetrics is Lightning's own requirement."""
    script = """
import importlib, pkgutil, sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in ("datasets", "jsonargparse") else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
import prunerecover
found = [module.name for module in pkgutil.walk_packages(prunerecover.__path__, "prunerecover.", onerror=print)]
outside = ("prunerecover.recipes.", "prunerecover.language.routed_harness", "prunerecover.__main__")
for name in found:
    if not name.startswith(outside):
        importlib.import_module(name)
from prunerecover.recipes.cli.main import main
print(len(found), main(["fit", "--config", "digits_vit_depth"]), main(["report", "no_report.json"]))
import prunerecover.recipes.tasks.digits_classifier, prunerecover.recipes.quickstart
import prunerecover.recipes.data.image_data
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    number, *statuses = result.stdout.split()
    assert int(number) > 400
    assert statuses == ["2", "2"], result.stderr
    named = "Expected jsonargparse and datasets for recipes, but jsonargparse and datasets cannot be found."
    assert f'prunerecover: error: {named} pip install "prunerecover[recipes]"' in result.stderr
    assert "ModuleNotFoundError: Expected datasets for recipes, but datasets cannot be found." in result.stderr
