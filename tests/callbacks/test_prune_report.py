"""PruneReport: users' own metrics and surgeries, in a folder and in loggers."""

from __future__ import annotations

import re
from pathlib import Path

import lightning.pytorch as pl
import pytest
from cases import trainers
from cases.models.habits import Plain, loader
from cases.trainers import every_epoch, prune, trainer_of
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from prunerecover import Budget, Report
from prunerecover.callbacks import PruneReport, WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger


class LogsNowAndThen(Plain):
    """Logs a metric in every second validation, and further metrics at the end and over the training epoch."""

    def training_step(self, batch, batch_idx):
        self.log("train_epoch", float(self.current_epoch), on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        super().validation_step(batch, batch_idx)
        if self.current_epoch % 2 == 0:
            self.log("val_map", float(self.current_epoch))

    def on_validation_epoch_end(self):
        self.log("val_epoch", float(self.current_epoch))


class LogsOddNames(Plain):
    """Logs metrics whose names do not serve as file names."""

    def validation_step(self, batch, batch_idx):
        for name in ("val/acc", "val_acc", "val acc", "Val_Acc", "layers"):
            self.log(name, 0.5)


class Table(PruneReport):
    """Skips the slow drawing of figures."""

    def _figures(self, *arguments):
        return {}


class Figures(PruneReport):
    """Keeps the figures."""

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
    """Notes val_acc as seen by other callbacks."""

    def __init__(self):
        self.seen = []

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.seen.append(float(trainer.callback_metrics["val_acc"]))


def test_the_table_has_what_the_module_logs_in_validation(tmp_path):
    values = Values()
    report = run(tmp_path, Plain(), prune(), Table(pairs=0), values)
    (found,) = (metric for name, metric in report.logged.items() if name == "val_acc")
    assert [found.dense, found.after_surgery, found.last] == list(zip([0, 1, 2], values.seen, strict=True))
    assert "| val_acc, % (logged) | " in (tmp_path / "report" / "report.md").read_text()
    assert not any("train" in name for name in report.logged)


def test_a_validation_before_the_fit_shows_the_dense_network(tmp_path):
    values = Values()
    report = run(tmp_path, Plain(), prune(schedule=0), Table(pairs=0), values, before=True, epochs=1)
    assert report.logged["val_acc"].dense == (None, values.seen[0])


@pytest.mark.slow
def test_one_report_in_two_fits_has_the_dense_values_of_the_first(tmp_path):
    module, report, values = Plain(), Figures(pairs=0), Values()
    run(tmp_path, module, report, values, epochs=2)
    found = run(tmp_path, module, prune(schedule=0), report, values)
    expected = list(zip([1, 0, 2], [values.seen[i] for i in (1, 2, 4)], strict=True))
    metric = found.logged["val_acc"]
    assert [metric.dense, metric.after_surgery, metric.last] == expected
    assert [epoch for epoch, _ in found.details["history"]["val_acc"]] == [0, 1, 2]


class Old(Table):
    """Writes the state of before surgeries were noted, told by its epochs."""

    def state_dict(self):
        return {"history": self.history, "validated": ["val_loss", "val_acc"], "dense": {}}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "table"), [(LogsNowAndThen, Table), (Plain, Old)])
def test_a_resumed_fit_shows_the_same_moments(make, table, tmp_path):
    whole = run(tmp_path, make(), prune(), table(pairs=0), every_epoch(tmp_path))
    runner = trainer_of(tmp_path / "again", prune(), table(pairs=0), epochs=3)
    runner.fit(make(), loader(), loader(shuffle=False), ckpt_path=tmp_path / "epoch=1.ckpt")
    again = Report.load(tmp_path / "again" / "report")
    assert (again.logged, again.details["history"]) == (whole.logged, whole.details["history"])


@pytest.mark.slow
def test_named_metrics_alone_are_shown_each_at_the_epochs_that_logged_it(tmp_path):
    report = Figures(pairs=0, metrics=["val_epoch", "val_map", "train_epoch"])
    found = run(tmp_path, LogsNowAndThen(), prune(), report, epochs=4)
    assert set(found.logged) == {"val_epoch", "val_map", "train_epoch"}
    history = found.details["history"]
    assert history["val_epoch"] == history["train_epoch"] == [[i, float(i)] for i in range(4)]
    assert history["val_map"] == [[0, 0.0], [2, 2.0]]
    assert found.logged["val_map"].after_surgery == (2, 2.0)
    assert found.logged["train_epoch"].dense == (0, 0.0)
    assert "val_epoch" in report.figures
    assert "val_acc" not in report.figures


def test_a_name_stands_for_all_validation_loaders(tmp_path):
    runner = trainer_of(tmp_path, prune(), Table(pairs=0, metrics="val_acc"), epochs=2)
    runner.fit(LogsNowAndThen(), loader(), [loader(shuffle=False), loader(24, shuffle=False)])
    found = Report.load(tmp_path / "report").logged
    assert list(found) == ["val_acc/dataloader_idx_0", "val_acc/dataloader_idx_1"]


@pytest.mark.slow
def test_every_figure_has_a_file_of_its_own_that_markdown_can_link(tmp_path):
    run(tmp_path, LogsOddNames(), prune(schedule=0), PruneReport(pairs=0), epochs=1)
    files = sorted(file.name for file in (tmp_path / "report").glob("*.png"))
    assert len({file.lower() for file in files}) == 7  # with those of the plan and of train_loss
    links = re.findall(r"!\[[^]]*\]\(([^ )]*)\)", (tmp_path / "report" / "report.md").read_text())
    assert sorted(links) == files
    assert {"layers.png", "layers_logged.png"} < set(files)


def test_a_metric_that_nobody_logs_is_warned_of(tmp_path):
    with pytest.warns(UserWarning, match=r"PruneReport's metrics among those that are logged \(.*val_acc.*got accurac"):
        run(tmp_path, Plain(), prune(), Table(pairs=0, metrics=["accuracy"]), epochs=2)


@pytest.mark.slow
def test_the_timeline_says_what_went(tmp_path):
    module, report = Plain(), Figures(pairs=0)
    run(tmp_path, module, prune(), WidthPrune(Budget(params=0.3), schedule=2, calibration=16), report)
    texts = [text.get_text() for text in report.figures["val_acc"].axes[0].texts]
    events = [event.summary for event in Ledger.of(module).events]
    assert [text.replace("\n", " ").replace("\u00a0", " ") for text in texts] == events
    assert events[0] == "depth: 1 attention, 1 activation removed"
    assert events[1].startswith("width: ")
    assert "% of neurons" in events[1]


def logged_by(folder: Path, *loggers: Logger) -> None:
    trainers.fit(folder, Plain(), prune(), PruneReport(pairs=0), val=loader(shuffle=False), logger=loggers)


@pytest.mark.slow
def test_tensorboard_and_csv_have_the_report_beside_the_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board, table = TensorBoardLogger(tmp_path / "board"), CSVLogger(tmp_path / "table")
    logged_by(tmp_path, board, table)
    report = Report.load(tmp_path / "report")
    events = EventAccumulator(board.log_dir).Reload()
    (text,) = events.Tensors("prune_report/text_summary")
    assert text.tensor_proto.string_val[0].decode() == report.to_markdown()
    assert "prune_report/layers" in events.Tags()["images"]
    assert "surgery/removed_units" in events.Tags()["scalars"]
    logged = Path(table.log_dir, "prune_report")
    assert Report.load(logged) == report
    assert (logged / "layers.png").is_file()
    assert "surgery/removed_units" in Path(table.log_dir, "metrics.csv").read_text()


def test_weights_and_biases_has_a_table_and_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(save_dir=tmp_path, offline=True)
    logged_by(tmp_path, logger)
    wandb.finish()
    (media,) = tmp_path.glob("wandb/offline-run-*/files/media")
    assert list(media.glob("images/prune_report/layers_*.png"))
    (table,) = media.glob("table/prune_report/before_and_after_*.json")
    assert '"Parameters"' in table.read_text()
