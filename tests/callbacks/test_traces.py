"""Traces of callbacks: schedules, lines, reports, warnings; a user's next steps, and trial runs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cases.models.habits import Parts, Plain, dataset
from cases.paths import TESTS
from cases.trainers import every_epoch, fit, prune
from lightning.pytorch.loggers.logger import DummyLogger

from prunerecover import apply_plan, load_pruned, plan_depth
from prunerecover.callbacks import DepthPrune, DistillRecover, PruneReport
from prunerecover.callbacks.ledger.ledger import Ledger


class Recorder(DummyLogger):
    def __init__(self):
        super().__init__()
        self.lines = []

    def log_metrics(self, metrics, step=None):
        self.lines.append((step, dict(metrics)))


@pytest.mark.slow
def test_surgery_reaches_logger_and_progress_bar(tmp_path):
    module, recorder = Plain(), Recorder()
    schedule = {"start": 1, "every": 1, "step": 1}
    callback = prune(remove={"attention": 1, "activation": 2}, schedule=schedule)
    runner = fit(tmp_path, module, callback, epochs=3, logger=recorder)
    told = [(step, line) for step, line in recorder.lines if "surgery/params" in line]
    assert [step for step, _ in told] == [6, 12]
    assert [line["surgery/removed_units"] for _, line in told] == [2, 3]
    params = [sum(p.numel() for p in Plain().parameters()), *(line["surgery/params"] for _, line in told)]
    assert params[0] > params[1]
    assert params[-1] == sum(p.numel() for p in module.net.parameters())
    assert all(line["surgery/macs"] > 0 for _, line in told)
    assert runner.progress_bar_metrics["removed_units"] == 3


def test_trial_run_tries_the_surgery_and_leaves_no_files(tmp_path):
    module = Plain()
    callbacks = [DepthPrune(remove={"block": 1}, schedule={"start": 5}, calibration=8), DistillRecover(), PruneReport()]
    fit(tmp_path, module, *callbacks, fast_dev_run=True)
    assert len(Ledger.of(module).events) == 1
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize(
    "changed",
    [
        [DepthPrune(remove={"activation": 2}, calibration=8)],
        [DepthPrune(remove={"block": 1}, calibration=8), DepthPrune(remove={"activation": 1}, calibration=8)],
    ],
    ids=["more units", "another in front"],
)
def test_resuming_with_other_arguments_is_refused(tmp_path, changed):
    fit(tmp_path, Plain(), DepthPrune(remove={"activation": 1}, calibration=8), every_epoch(tmp_path), epochs=1)
    with pytest.raises(ValueError, match="with the arguments of the run that is resumed"):
        fit(tmp_path / "again", Plain(), *changed, resume=tmp_path / "epoch=0.ckpt")


@pytest.mark.slow
def test_resuming_with_fewer_callbacks_is_told(tmp_path):
    later = DepthPrune(remove={"attention": 1}, schedule={"start": 1}, calibration=8)
    first, again = (DepthPrune(remove={"activation": 1}, calibration=8) for _ in range(2))
    fit(tmp_path, Plain(), first, later, every_epoch(tmp_path))
    with pytest.warns(UserWarning, match="a run that also had DepthPrune.1, which this Trainer has not"):
        fit(tmp_path / "again", Plain(), again, resume=tmp_path / "epoch=0.ckpt")


NOW = {"remove": {"attention": 1}, "schedule": {"start": 0}}


def test_distillation_that_no_step_listens_to(tmp_path):
    module = Parts()
    how = {"importance": "magnitude", "batches": [dataset().tensors[0]], "replace": "zero"}
    plan = plan_depth(module.net, remove={"attention": 1}, **how)
    with pytest.warns(UserWarning, match=r"Parts.training_step to call the network at 'net' .* nothing is distilled"):
        fit(tmp_path, module, DepthPrune(plan=plan), DistillRecover(), epochs=1)


def test_distillation_without_a_surgery(tmp_path):
    module = Plain()
    images = [dataset().tensors[0]]
    apply_plan(module.net, plan_depth(module.net, importance="magnitude", remove={"attention": 1}, batches=images))
    with pytest.warns(UserWarning, match=r"nothing is distilled. Pass DistillRecover\(teacher=...\)"):
        fit(tmp_path, module, DistillRecover(), epochs=1)


def test_distillation_as_usual_warns_of_nothing(tmp_path, recwarn):
    fit(tmp_path, Plain(), prune(), DistillRecover())
    old = (FutureWarning, DeprecationWarning)  # in Lightning's own code, about which users can do nothing
    assert not [w for w in recwarn if "distilled" in str(w.message) or issubclass(w.category, old)]


def test_merged_copy_leaves_the_files_of_others_alone(tmp_path):
    folder = tmp_path / "checkpoints"
    (folder / "pruned").mkdir(parents=True)
    (folder / "pruned" / "model.onnx").write_text("mine")
    with pytest.warns(UserWarning, match=r"or somebody else has put there. .*copy of this run is at .*pruned-v1"):
        fit(tmp_path, Plain(), prune(merge="copy", **NOW), epochs=1)
    assert (folder / "pruned" / "model.onnx").read_text() == "mine"
    assert load_pruned(folder / "pruned-v1")


FORKED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from cases.models.habits import Plain, loader
from cases.trainers import fit, prune
callback = prune(remove={"attention": 1}, schedule={"start": 0})
fit(sys.argv[2], Plain(), callback, epochs=1, strategy="ddp_fork", devices=1)
"""


@pytest.mark.slow
def test_forked_fit_says_where_the_pruned_model_is(tmp_path):
    """Lightning returns the weights with strict=False: the module would be dense and partly trained."""
    command = [sys.executable, "-c", FORKED, str(TESTS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "the module in the process that called fit stays dense" in done.stderr
    assert f"Go on from {tmp_path}" in done.stderr
