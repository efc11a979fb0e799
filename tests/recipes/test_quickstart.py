"""The quickstart keeps its promises: recovered within a point, a third of the MACs removed, and all files written."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from prunerecover import Report, load_pruned
from prunerecover.recipes.cli.main import main
from prunerecover.recipes.data.digits import DigitsData
from prunerecover.recipes.quickstart import run_quickstart, summary
from prunerecover.recipes.tasks.digits_classifier import DigitsClassifier

FILES = {"report.md", "report.json", "removed.png", "accuracy.png", "plan.json", "pruned"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with a single seed, which must leave threads and logging unchanged."""
    folder = tmp_path_factory.mktemp("quickstart") / "out"
    before = torch.get_num_threads(), logging.getLogger("lightning.pytorch").level
    assert main(["quickstart", "--seeds", "1", "--output", str(folder)]) == 0
    assert (torch.get_num_threads(), logging.getLogger("lightning.pytorch").level) == before
    return folder


@pytest.mark.slow
def test_everything_is_written(written: Path) -> None:
    assert {p.name for p in written.iterdir()} >= FILES
    text = (written / "report.md").read_text()
    for word in ("Parameters", "MACs in the blocks", "Latency", "Top-1", "removed.png", "accuracy.png"):
        assert word in text


@pytest.mark.slow
def test_pruned_folder_scores_what_the_report_says(written: Path) -> None:
    report, pruned = Report.load(written), load_pruned(written / "pruned")
    data = DigitsData()
    data.setup()
    images, labels = (torch.cat(t) for t in zip(*data.test_dataloader(), strict=True))
    with torch.no_grad():
        accuracy = (pruned(images).argmax(-1) == labels).float().mean().item()
    assert accuracy == pytest.approx(report.metrics["top1"].pruned.value)
    assert accuracy == pytest.approx(report.details["seeds"][0]["recovered"])
    assert sum(p.numel() for p in pruned.parameters()) == report.pruned.parameters


@pytest.mark.slow
def test_targets_hold(written: Path) -> None:
    report = Report.load(written)
    mean = report.details["mean"]
    assert report.metrics["top1"].samples >= 800
    assert mean["recovered"] >= mean["dense"] - 0.01
    assert mean["dense"] > 0.93
    dense, pruned = report.block_macs
    assert pruned <= 0.65 * dense
    assert "points against dense" in summary(report)[-1]


def test_no_seeds_is_an_error() -> None:
    with pytest.raises(ValueError, match="Expected at least 1 seed, but got 0"):
        run_quickstart(seeds=0)


def test_positions_start_larger_than_timms() -> None:
    module = DigitsClassifier(depth=2)
    assert module.model.pos_embed.std().item() == pytest.approx(DigitsClassifier.POSITION_STD, rel=0.2)
    assert module.hparams["depth"] == 2
