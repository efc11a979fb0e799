"""docs/extending.md: every example runs as written, and is short."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from cases.docs.blocks import blocks_of, read, run_saved

from prunerecover import Plan
from prunerecover.families import describe
from prunerecover.importance import registry

SECTIONS = {section.partition("\n")[0]: section for section in read("docs/extending.md").split("\n## ")[1:]}
LINES = 30
LONG = (  # run with the slow tests
    "A clock of your own",
    "A new allocation",
    "A new importance",
    "A new method of the command line",
)


def code_lines(text: str) -> list[str]:
    """Lines of code: neither blank, nor comments, nor docstrings."""
    without = re.sub(r'"""(.*?)"""', "", text, flags=re.DOTALL)
    return [line for line in without.splitlines() if line.strip() and not line.strip().startswith("#")]


@pytest.mark.parametrize("title", SECTIONS)
def test_an_example_is_short(title: str) -> None:
    lines = [line for block in blocks_of(SECTIONS[title]) for line in code_lines(block.text)]
    assert 1 <= len(lines) <= LINES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a user's folder, with registries that forget an example's additions afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command line adds the working directory
    monkeypatch.setattr(describe, "FAMILIES", dict(describe.FAMILIES))
    monkeypatch.setattr(registry, "IMPORTANCES", dict(registry.IMPORTANCES))
    return tmp_path


@pytest.mark.parametrize("title", [pytest.param(t, marks=pytest.mark.slow if t in LONG else ()) for t in SECTIONS])
def test_an_example_runs(title: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    modules = set(sys.modules)
    for block in blocks_of(SECTIONS[title]):
        run_saved(block, folder)
    for name in set(sys.modules) - modules:
        if name.startswith("my_"):
            del sys.modules[name]
    printed = capsys.readouterr().out
    if title.endswith("command line"):
        (attentions,) = Plan.load(folder / "plan.json").removed.values()
        assert len(attentions) == 2
        assert min(int(name.split(".")[1]) for name in attentions) >= 3
    elif title.endswith("recipe"):
        assert list(folder.rglob("pruned/plan.json"))
    else:
        assert re.search(r"'[\w.]+': (\(|\[|[1-9])", printed), printed
