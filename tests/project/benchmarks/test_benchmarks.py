"""Every benchmark is a command with a description and options, available without data or weights."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from cases.paths import ROOT

from benchmarks.depth import time_follows_macs
from benchmarks.runner.rows import Results

BLOCKS = tuple(f'if __name__ == "__main__":\n    {call}\n' for call in ("main()", "BENCHMARK.main()"))
FILES = [path for path in sorted(ROOT.glob("benchmarks/*/*.py")) if "__name__ ==" in path.read_text()]
NAMES = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES]


def text_of(name: str) -> str:
    return (ROOT / name.replace(".", "/")).with_suffix(".py").read_text()


def test_there_are_benchmarks_in_every_folder() -> None:
    others = {path.parent.name for path in ROOT.glob("benchmarks/*/__init__.py")} - {"data", "runner"}  # helpers alone
    assert {path.parent.name for path in FILES} >= others


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_benchmark(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("PRUNERECOVER_DATA", raising=False)
    monkeypatch.setattr("sys.argv", [name, "--help"])
    module = importlib.import_module(name)
    assert text_of(name).endswith(BLOCKS)
    with pytest.raises(SystemExit) as stopped:
        getattr(module, "BENCHMARK", module).main()
    assert not stopped.value.code
    shown = capsys.readouterr().out
    assert shown.startswith("usage: ")
    first = (module.__doc__ or "").splitlines()[0]
    assert first in shown
    assert f"python -m {name}" in shown


LONG = ("llm_depth", "experts", "width")  # pages of many rows with all their samples


def each_page() -> list[Any]:
    names = [name for name in NAMES if "BENCHMARK = " in text_of(name)]
    return [pytest.param(name, marks=pytest.mark.slow) if name.endswith(LONG) else name for name in names]


@pytest.mark.parametrize("name", each_page())
def test_a_page_is_rendered_anew_to_the_same_bytes(name: str) -> None:
    benchmark = importlib.import_module(name).BENCHMARK
    results = Results.read(benchmark.name)
    assert benchmark.markdown(results.rows, results.runs) == results.path.with_suffix(".md").read_text()


def test_unknown_options_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["time_follows_macs", "--seed", "3"])
    with pytest.raises(SystemExit, match="2"):
        time_follows_macs.BENCHMARK.main()
    assert "unrecognized arguments: --seed 3" in capsys.readouterr().err
