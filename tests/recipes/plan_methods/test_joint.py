"""`prunerecover plan --method joint`: its output, the same decision as `Prune`, and its refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases.depth.interrupted import Interrupts
from cases.width.command_line import QUIET, command, run

from prunerecover import Budget
from prunerecover.plan.evidence import SplitEvidence
from prunerecover.recipes.plan_methods.joint import JointPlan

NETWORK = {"depth": 2, "embed_dim": 16}
RECIPE: dict[str, Any] = {
    "trainer": {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "limit_train_batches": 1, **QUIET},
    "model": {"class_path": "DigitsClassifier", "init_args": NETWORK},
    "data": {"class_path": "DigitsData"},
}
OPTIONS = ("--method=joint", "--method.macs=0.3", "--method.kinds=[attention,neuron]")


def test_plan_is_written_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = run(tmp_path, "--method=joint", "--method.macs=0.3", "--method.kinds=[neuron]", recipe=RECIPE)
    assert plan.made_by.method == "joint"
    assert SplitEvidence.of(plan.evidence).depth_share == 0
    gone, size = len(plan.removed["neuron"]), sum(group.size for group in plan.kept_groups)
    assert f"Wrote {tmp_path / 'plan.json'}: removes {gone} of {size} neurons" in capsys.readouterr().out


def test_a_latency_is_that_of_the_runtime_that_is_named() -> None:
    assert JointPlan(latency=0.2, clock="openvino").budget == Budget(latency=0.2, clock="openvino")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "results", "written"),
    [
        (("--method=depth", "--method.remove={attention: 1}"), 1, "plan.json"),
        (OPTIONS, 9, "plan.json"),
        (("--method=frontier", "--method.shares=[0.3]"), 9, "plan.md"),
    ],
)
def test_an_interrupted_search_goes_on(
    options: tuple[str, ...],
    results: int,
    written: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    interrupts = Interrupts(monkeypatch)
    interrupts.begin(results)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        command(tmp_path, *options, recipe=RECIPE)
    found = f"{results} result{'s' * (results > 1)}"
    assert f"interrupted, with {found} in {tmp_path / 'plan.search'}. Run this again to go on" in caplog.text
    interrupts.begin()
    assert command(tmp_path, *options, recipe=RECIPE) == 0
    rest = interrupts.computed
    assert (tmp_path / written).exists()
    assert not (tmp_path / "plan.search").exists()
    interrupts.begin()
    assert command(tmp_path, *options, recipe=RECIPE) == 0
    assert interrupts.computed == rest + results


@pytest.mark.slow
def test_splits_are_recovered(tmp_path: Path) -> None:
    options = (*OPTIONS, "--method.recover=true", "--method.trials.epochs=1")
    options = (*options, "--method.trials.trainer={'limit_train_batches': 2, 'limit_val_batches': 2}")
    found = SplitEvidence.of(run(tmp_path, *options, recipe=RECIPE).evidence)
    assert len(found.splits) == 3
    assert all(one.divergence is None for one in found.splits)
    best = min(found.splits, key=lambda one: (-(one.accuracy or 0), one.depth))
    assert found.depth_share == best.depth
    page = (tmp_path / "plan.md").read_text()
    assert f"Picked: {best.depth:.1%} of the budget in depth." in page
    assert f"- 0.0% of the budget in depth: {found.splits[1].accuracy:.2f}%" in page
    trials = (tmp_path / "plan.trials.jsonl").read_text()
    assert 2 <= trials.count("\n") <= len(found.splits), "one per plan; small networks have few"
