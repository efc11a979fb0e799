"""A report states the measurements, and can be read back as written."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.tiny import plain_vit
from scipy.stats import binomtest
from torch import Tensor, nn

from prunerecover.cost.macs import count_macs
from prunerecover.model.replacements import Nothing
from prunerecover.plan.edits import Remove, Replace
from prunerecover.plan.evidence import PlanningCost
from prunerecover.plan.plan import Plan
from prunerecover.plan.records import MadeBy
from prunerecover.plan.removed_units import removed_units
from prunerecover.report.compare import compare
from prunerecover.report.curves import plot_history
from prunerecover.report.data import PlanSummary
from prunerecover.report.report import Report

PLAN = Plan(
    made_by=MadeBy(method="depth/output_divergence", arguments={"remove": {"attention": 1}}, seed=3),
    edits=(
        Remove(unit="blocks.1.attn", kind="attention"),
        Replace(unit="blocks.3.mlp.act", kind="activation", leaves="slope_bias", tensors=("e1.slope", "e1.bias")),
    ),
)


def dense_vit() -> nn.Module:
    torch.manual_seed(0)
    return plain_vit(img_size=32, patch_size=8, embed_dim=24, depth=4, num_heads=2, num_classes=5)


def without_attention(model: nn.Module, *blocks: int) -> nn.Module:
    pruned = copy.deepcopy(model)
    for block in blocks:
        pruned.blocks[block].attn = Nothing()
    return pruned


def labelled(seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(20, 3, 32, 32, generator=generator), torch.randint(0, 5, (20,), generator=generator))
        for _ in range(4)
    ]


@pytest.fixture(scope="module")
def report() -> Report:
    dense = dense_vit()
    return compare(
        dense,
        without_attention(dense, 1),
        torch.zeros(2, 3, 32, 32),
        batches=labelled(),
        metric=("top1", "top2"),
        plan=PLAN,
        planning_cost=PlanningCost(seconds=12.5, peak_memory_bytes=3 * 2**20, trials=8),
        pairs=5,
        details={"history": [[0, 0.5], [1, 0.75]]},
    )


def test_costs_are_those_of_the_two_models(report: Report) -> None:
    dense = dense_vit()
    attention = 4 * 24 * 24 * 17 + 2 * 17 * 17 * 24
    assert report.dense.parameters == sum(p.numel() for p in dense.parameters())
    assert report.dense.macs == count_macs(dense, torch.zeros(2, 3, 32, 32))
    assert report.dense.macs - report.pruned.macs == 2 * attention
    assert report.block_macs is not None
    assert report.block_macs[0] - report.block_macs[1] == 2 * attention
    assert report.block_macs[0] == 2 * 4 * (attention + 8 * 24 * 24 * 17)
    assert report.latency is not None
    assert (report.dense.latency_ms, report.pruned.latency_ms) == (report.latency.dense_ms, report.latency.pruned_ms)
    share = report.pruned.macs / report.dense.macs
    assert report.time_over_macs == pytest.approx(report.latency.ratio.value / share)


def test_metrics_equal_counting_by_hand(report: Report) -> None:
    dense = dense_vit().eval()
    right = [
        torch.cat([model(x).argmax(-1) == y for x, y in labelled()]) for model in (dense, without_attention(dense, 1))
    ]
    found = report.metrics["top1"]
    assert (found.samples, found.share) == (80, True)
    assert [found.dense.value, found.pruned.value] == [r.double().mean().item() for r in right]
    bounds = binomtest(int(right[0].sum()), 80).proportion_ci(method="wilson")
    assert [found.dense.low, found.dense.high] == pytest.approx([bounds.low, bounds.high])
    assert found.difference.value == pytest.approx(found.pruned.value - found.dense.value)
    assert found.difference.low <= found.difference.value <= found.difference.high


def test_model_compared_with_itself_has_not_changed() -> None:
    model = dense_vit()
    same = compare(model, model, torch.zeros(1, 3, 32, 32), batches=labelled(), pairs=0)
    assert same.dense == same.pruned
    assert same.latency is None
    assert same.time_over_macs is None
    difference = same.metrics["top1"].difference
    assert (difference.value, difference.low, difference.high) == (0, 0, 0)


def test_both_models_are_left_alone() -> None:
    models = dense_vit().train(), without_attention(dense_vit(), 0).train()
    before, random = [copy.deepcopy(m.state_dict()) for m in models], torch.get_rng_state()
    compare(*models, torch.zeros(1, 3, 32, 32), batches=labelled(), pairs=1)
    assert torch.equal(random, torch.get_rng_state())
    for model, state in zip(models, before, strict=True):
        assert all(module.training for module in model.modules())
        torch.testing.assert_close(dict(model.state_dict()), dict(state), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("pairs", "said", "called"), [(1, "ratio of 1 pair", "[range "), (6, "median ratio of 6 pairs", "[")]
)
def test_few_pairs_are_said_to_give_a_range(pairs: int, said: str, called: str) -> None:
    layer = nn.Linear(3, 3)
    found = compare(layer, layer, torch.zeros(1, 3), pairs=pairs)
    page, data = found.to_markdown(), found.to_dict()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| Latency, {said} |")]
    assert f"% {called}" in row
    assert ("95%" in page) == (pairs == 6) == ("too few for an interval" not in page)
    assert data["latency"]["ratio"]["confidence"] == (0.95 if pairs == 6 else None)
    assert Report.from_dict(data) == found


def test_metric_may_be_a_function() -> None:
    def loss(predictions: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(predictions, labels, reduction="none")

    model = dense_vit()
    found = compare(model, model, torch.zeros(1, 3, 32, 32), batches=labelled(), metric=loss, pairs=0).metrics
    assert not found["loss"].share
    assert found["loss"].dense.low < found["loss"].dense.value < found["loss"].dense.high
    renamed = compare(model, model, torch.zeros(1, 3, 32, 32), batches=labelled(), metric={"nll": loss}, pairs=0)
    assert renamed.metrics["nll"] == found["loss"]


def test_report_reads_back_as_it_was(report: Report, tmp_path: Path) -> None:
    assert Report.from_dict(report.to_dict()) == report
    assert Report.from_dict(json.loads(json.dumps(report.to_dict()))) == report
    report.save(tmp_path / "new" / "folder")
    assert Report.load(tmp_path / "new" / "folder") == report
    assert Report.load(tmp_path / "new" / "folder" / "report.json") == report


def test_saving_writes_figures_and_links_them(report: Report, tmp_path: Path) -> None:
    folder = report.save(tmp_path, {"accuracy": plot_history({"validation": [(0, 0.5), (1, 0.75)]})})
    assert {file.name for file in folder.iterdir()} == {"report.md", "report.json", "accuracy.png"}
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "![accuracy.png](accuracy.png)" in (folder / "report.md").read_text(encoding="utf-8")


def test_markdown_says_all(report: Report) -> None:
    text = report.to_markdown()
    metric = report.metrics["top1"]
    for expected in (
        "| Parameters | ",
        "| MACs in the blocks | ",
        "| Latency, batch of 2, medians | ",
        f"| Top-1 accuracy, % (80 samples) | {100 * metric.dense.value:.2f} [{100 * metric.dense.low:.1f}, ",
        "| Latency, median ratio of 5 pairs | 1 | ",
        "- attention: `blocks.1.attn` (zero)",
        "- activation: `blocks.3.mlp.act` (slope_bias)",
        "Planned by `depth/output_divergence` with `remove={'attention': 1}`, seed 3.",
        "12.5 s, 8 trials, peak memory 3 MiB.",
        f"torch {report.versions['torch']}",
        report.dense.device_name,
    ):
        assert expected in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {5}


@pytest.mark.parametrize("data", [{}, {"schema": "prunerecover.report/2"}, {"schema": "prunerecover.plan/1"}])
def test_other_schema_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Expected a report of schema 'prunerecover.report/1', but got"):
        Report.from_dict(data)


def test_incomplete_and_broken_files_are_refused(report: Report, tmp_path: Path) -> None:
    data = report.to_dict()
    del data["pruned"]
    with pytest.raises(ValueError, match="Expected a complete report, but"):
        Report.from_dict(data)
    file = tmp_path / "report.json"
    file.write_text('{"schema": ')
    with pytest.raises(ValueError, match="Expected JSON in"):
        Report.load(file)
    file.write_text("[1]")
    with pytest.raises(ValueError, match="Expected a report of schema"):
        Report.load(file)


def test_unlabelled_batches_are_refused() -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(TypeError, match="Leave `batches` out to compare costs alone"):
        compare(model, model, torch.zeros(1, 3), batches=[torch.zeros(2, 3)], pairs=0)


def test_units_behind_removed_blocks_get_the_numbers_of_the_dense_model() -> None:
    """The oracle takes labelled blocks out of a list, as the surgery does."""
    edits = [
        Remove(unit="layers.5", kind="block"),
        Remove(unit="layers.1", kind="block"),
        Remove(unit="layers.1.mlp", kind="mlp"),
        Remove(unit="layers.4", kind="block"),
        Replace(unit="layers.3.attn", kind="attention", leaves="constant"),
        Remove(unit="layers.0.attn", kind="attention"),
        Remove(unit="layers.4.attn", kind="attention"),
    ]
    blocks, expected = list(range(9)), []
    for edit in edits:
        index = int(edit.unit.split(".")[1])
        expected.append(edit.unit.replace(str(index), str(blocks[index])))
        if edit.kind == "block":
            del blocks[index]
    assert [unit.name for unit in removed_units(edits)] == expected
    summary = PlanSummary.of(Plan(edits=tuple(edits)))
    assert summary.removed["block"] == ["layers.5", "layers.1", "layers.6"]
    assert summary.leaves["layers.5"] == "nothing"
