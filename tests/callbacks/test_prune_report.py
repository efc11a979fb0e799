"""PruneReport: what users read of their own metrics and surgeries."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
from cases.models.habits import Plain, loader
from cases.trainers import prune, trainer_of
from lightning.pytorch.callbacks import Callback

from prunerecover import Budget, Report
from prunerecover.callbacks import PruneReport, WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger


class LogsAtTheEnd(Plain):
    """Logs what only the end of the validation knows."""

    def on_validation_epoch_end(self):
        self.log("val_epoch", float(self.trainer.current_epoch))


class Figures(PruneReport):
    """Keeps its figures."""

    def _figures(self, *arguments):
        self.figures = super()._figures(*arguments)
        return self.figures


def run(folder, module, *callbacks, before=False, data=True, epochs=3):
    pl.seed_everything(3, verbose=False)
    runner = trainer_of(folder, *callbacks, epochs=epochs)
    if before:
        runner.validate(module, loader(shuffle=False), verbose=False)
    runner.fit(module, loader(), loader(shuffle=False) if data else None)
    return Report.load(folder / "report")


class Values(Callback):
    """Notes val_acc as other callbacks see it."""

    def __init__(self):
        self.seen = []

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.seen.append(float(trainer.callback_metrics["val_acc"]))


def test_the_table_has_what_the_module_logs_in_validation(tmp_path):
    values = Values()
    report = run(tmp_path, Plain(), prune(), PruneReport(pairs=0), values)
    (found,) = (metric for name, metric in report.logged.items() if name == "val_acc")
    assert [found.dense, found.after_surgery, found.last] == list(zip([0, 1, 2], values.seen, strict=True))
    assert "| val_acc, % (logged) | " in (tmp_path / "report" / "report.md").read_text()
    assert not any("train" in name for name in report.logged)


def test_what_is_logged_at_the_end_of_a_validation_is_of_its_own_epoch(tmp_path):
    report = run(tmp_path, LogsAtTheEnd(), prune(), PruneReport(pairs=0))
    assert report.details["history"]["val_epoch"] == [[0, 0.0], [1, 1.0], [2, 2.0]]


def test_a_validation_before_the_fit_shows_the_dense_network(tmp_path):
    values = Values()
    report = run(tmp_path, Plain(), prune(schedule=0), PruneReport(pairs=0), values, before=True, epochs=1)
    assert report.logged["val_acc"].dense == (None, values.seen[0])


def test_nothing_validated_gives_no_row(tmp_path):
    assert run(tmp_path, Plain(), prune(), PruneReport(pairs=0), data=False).logged == {}


def test_named_metrics_alone_are_shown(tmp_path):
    report = Figures(pairs=0, metrics="val_acc")
    assert list(run(tmp_path, LogsAtTheEnd(), prune(), report).logged) == ["val_acc"]
    assert "val_acc" in report.figures
    assert "val_epoch" not in report.figures


def test_a_metric_that_nobody_logs_is_warned_of(tmp_path):
    with pytest.warns(UserWarning, match=r"PruneReport's metrics among those that are logged \(.*val_acc.*got accurac"):
        run(tmp_path, Plain(), prune(), PruneReport(pairs=0, metrics=["accuracy"]), epochs=2)


def test_the_timeline_says_what_went(tmp_path):
    module, report = Plain(), Figures(pairs=0)
    run(tmp_path, module, prune(), WidthPrune(Budget(params=0.3), schedule=2, calibration=16), report)
    texts = [text.get_text() for text in report.figures["val_acc"].axes[0].texts]
    events = [event.summary for event in Ledger.of(module).events]
    assert [text.replace("\n", " ").replace("\u00a0", " ") for text in texts] == events
    assert events[0] == "depth: 1 attention, 1 activation removed"
    assert events[1].startswith("width: ")
    assert "% of neurons" in events[1]
