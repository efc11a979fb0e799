"""What callbacks leave behind: schedules, log lines, reports."""

from __future__ import annotations

import copy

import lightning.pytorch as pl
import pytest
from cases.models.habits import Plain, dataset, loader
from cases.trainers import fit, prune, trainer_of

from prunerecover import Plan, Report, plan_depth
from prunerecover.callbacks import DepthPrune, DistillRecover, PruneReport, PruneSchedule
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.report.data import SearchCost


@pytest.mark.parametrize(
    ("schedule", "counts", "events"),
    [
        (PruneSchedule(), {}, []),
        (PruneSchedule(), {"block": 0}, []),
        (PruneSchedule(), {"block": 2, "mlp": 0}, [(0, {"block": 2})]),
        (PruneSchedule(start=3), {"block": 2, "mlp": 1}, [(3, {"block": 2, "mlp": 1})]),
        (PruneSchedule(every=2, step=2), {"mlp": 3}, [(0, {"mlp": 2}), (2, {"mlp": 1})]),
        (PruneSchedule(every=1), {"mlp": 2}, [(0, {"mlp": 1}), (1, {"mlp": 1})]),
        (
            PruneSchedule(start=1, every=1, step=2, alternate=True),
            {"attention": 3, "activation": 2},
            [(1, {"attention": 2}), (2, {"activation": 2}), (3, {"attention": 1})],
        ),
        (
            PruneSchedule(every=3, step=1, alternate=True),
            {"a": 1, "b": 3},
            [(0, {"a": 1}), (3, {"b": 1}), (6, {"b": 1}), (9, {"b": 1})],
        ),
    ],
)
def test_schedule_events(schedule, counts, events):
    assert schedule.events(counts) == events
    total = {kind: sum(taken.get(kind, 0) for _, taken in events) for kind in counts}
    assert total == dict(counts)


@pytest.mark.parametrize("max_epochs", [None, -1, 5])
def test_schedule_that_fits(max_epochs):
    assert PruneSchedule().check_fits([0, 4], max_epochs) is None
    assert PruneSchedule().check_fits([], 0) is None


class Recorder(pl.loggers.Logger):
    name, version = "recorder", 0

    def __init__(self):
        super().__init__()
        self.lines = []

    def log_metrics(self, metrics, step=None):
        self.lines.append((step, dict(metrics)))

    def log_hyperparams(self, *args, **kwargs):
        pass


@pytest.mark.slow
def test_surgery_reaches_logger_and_progress_bar(tmp_path):
    module, recorder = Plain(), Recorder()
    schedule = {"start": 1, "every": 1, "step": 1, "alternate": True}
    callback = prune(remove={"attention": 1, "activation": 1}, schedule=schedule)
    runner = fit(tmp_path, module, callback, epochs=3, logger=recorder)
    told = [(step, line) for step, line in recorder.lines if "surgery/params" in line]
    assert [step for step, _ in told] == [6, 12]
    assert [line["surgery/removed_units"] for _, line in told] == [1, 2]
    params = [sum(p.numel() for p in Plain().parameters()), *(line["surgery/params"] for _, line in told)]
    assert params[0] > params[1]
    assert params[-1] == sum(p.numel() for p in module.net.parameters())
    assert all(line["surgery/macs"] > 0 for _, line in told)
    assert runner.progress_bar_metrics["removed_units"] == 2


@pytest.mark.slow
def test_report_is_written(tmp_path):
    module = Plain()
    pl.seed_everything(3, verbose=False)
    runner = trainer_of(tmp_path, prune(), PruneReport(pairs=2), epochs=3)
    runner.fit(module, loader(), loader(shuffle=False))
    folder = tmp_path / "report"
    assert Plan.load(folder / "plan.json").edits == Ledger.of(module).plans["net"].edits
    text = (folder / "report.md").read_text()
    assert "MACs" in text
    (event,) = Ledger.of(module).events
    assert Report.load(folder).search == SearchCost(seconds=event.seconds)
    assert event.seconds > 0
    history = PruneReport()
    history.load_state_dict(runner.callbacks[1].state_dict())
    assert [epoch for epoch, _ in history.history["val_acc"]] == [0, 1, 2]
    assert "removed_units" not in history.history


def test_report_states_what_a_search_before_the_fit_took(tmp_path):
    module, cost = Plain(), {"seconds": 60.0, "peak_memory_bytes": 7, "trials": 5}
    plan = plan_depth(module.net, remove={"attention": 1}, batches=loader(), replace="zero")
    plan = plan.model_copy(update={"evidence": {**plan.evidence, "search": cost}})
    trainer_of(tmp_path, DepthPrune(plan=plan), PruneReport(pairs=0), epochs=1).fit(module, loader())
    assert Report.load(tmp_path / "report").search == SearchCost(**cost)


def test_merged_copy_answers_like_the_live_module(tmp_path):
    from prunerecover import load_pruned

    module = Plain()
    fit(tmp_path, module, prune(remove={"attention": 1, "activation": 2}, merge="copy"), DistillRecover())
    merged = load_pruned(tmp_path / "checkpoints" / "pruned")
    images = dataset().tensors[0]
    assert (merged(images) - module.eval().net(images)).abs().max() <= 1e-4
    assert sum(p.numel() for p in merged.parameters()) < sum(p.numel() for p in module.parameters())
    assert Ledger.of(module).plans["net"].edits == Ledger.of(copy.deepcopy(module)).plans["net"].edits
