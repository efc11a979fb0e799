"""The quickstart keeps its promises: recovered within a point, a third of the blocks' MACs gone, everything written."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch

from prunerecover import Plan, Report, load_pruned
from prunerecover.recipes.digits import DigitsClassifier, DigitsData
from prunerecover.recipes.quickstart import Recipe, run_quickstart, summary

FILES = {"report.md", "report.json", "removed.png", "accuracy.png", "plan.json", "pruned"}
TINY = Recipe(epochs=1, recovery_epochs=1, remove={"activation": 1, "attention": 1})


def test_one_epoch_writes_everything_and_reads_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = run_quickstart(seeds=1, output=str(tmp_path / "out"), recipe=TINY)
    assert {p.name for p in (tmp_path / "out").iterdir()} >= FILES
    assert Report.load(tmp_path / "out") == report
    shown = capsys.readouterr().out
    for word in ("Parameters", "MACs in the blocks", "Latency", "top1", "before recovery"):
        assert word in shown

    data = DigitsData()
    data.setup()
    images, labels = (torch.cat(t) for t in zip(*data.test_dataloader(), strict=True))
    pruned = load_pruned(tmp_path / "out" / "pruned").eval()
    with torch.no_grad():
        accuracy = (pruned(images).argmax(-1) == labels).float().mean().item()
    assert accuracy == pytest.approx(report.metrics["top1"].pruned.value)
    assert accuracy == pytest.approx(report.details["seeds"][0]["recovered"])
    plan = Plan.load(tmp_path / "out" / "plan.json")
    assert {kind: len(units) for kind, units in plan.removed.items()} == TINY.remove
    assert sum(p.numel() for p in pruned.parameters()) == report.pruned.parameters


def test_threads_and_logging_are_left_as_they_were(tmp_path: Path) -> None:
    import logging

    before = torch.get_num_threads(), logging.getLogger("lightning.pytorch").level
    run_quickstart(seeds=1, output=str(tmp_path), recipe=TINY)
    assert (torch.get_num_threads(), logging.getLogger("lightning.pytorch").level) == before


def test_no_seeds_is_an_error() -> None:
    with pytest.raises(ValueError, match="Expected at least 1 seed, but got 0"):
        run_quickstart(seeds=0)


def test_positions_start_larger_than_timms() -> None:
    module = DigitsClassifier(depth=2)
    assert module.model.pos_embed.std().item() == pytest.approx(DigitsClassifier.POSITION_STD, rel=0.2)
    assert module.hparams["depth"] == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_targets_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prunerecover.recipes.cli import main

    monkeypatch.setattr(sys, "argv", ["prunerecover"])
    started = time.perf_counter()
    assert main(["quickstart", "--seeds", "3", "--output", str(tmp_path / "report")]) == 0
    assert time.perf_counter() - started < 4 * 60
    report = Report.load(tmp_path / "report")
    mean = report.details["mean"]
    assert report.metrics["top1"].samples >= 800
    assert mean["recovered"] >= mean["dense"] - 0.01
    assert mean["dense"] > 0.93
    dense, pruned = report.block_macs
    assert pruned <= 0.65 * dense
    assert "points against dense" in summary(report)[-1]
