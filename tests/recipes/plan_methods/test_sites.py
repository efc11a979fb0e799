"""`prunerecover plan --method sites`: the first sites on the terminal, all of them in a file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cases.width.command_line import IMAGE, command, dense

from prunerecover import find_sites


@pytest.fixture(autouse=True)
def _no_other_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["prunerecover"])


@pytest.mark.slow
def test_sites_are_those_of_the_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--method=sites", "--method.kinds=[block, channel]", "--method.ignore=['layer3.*']"]
    assert command(tmp_path, *options, output="all.json") == 0
    sites = find_sites(dense().model, IMAGE, ("block", "channel"), "layer3.*")
    printed = capsys.readouterr().out
    assert str(sites) in printed
    assert f"Wrote {tmp_path / 'all.md'}" in printed
    assert {file.name for file in tmp_path.iterdir()} == {"recipe.yaml", "all.md"}
    page = (tmp_path / "all.md").read_text()
    assert page == sites.to_markdown()
    assert all(f"| {site.name} | {site.kind} | {site.size} | {site.params:,} |" in page for site in sites)
    assert all(f"| `{name}` | {reason} |" in page for name, reason in sites.refused.items())


def test_a_wrong_kind_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "--method=sites", "--method.kinds=[filter]") == 2
    assert "Expected kinds among block" in capsys.readouterr().err
    assert {file.name for file in tmp_path.iterdir()} == {"recipe.yaml"}
