"""PruneReport in loggers: what people find in TensorBoard, in Weights & Biases, and beside a CSV file."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import pytest
from cases.models.habits import Plain, loader
from cases.trainers import prune
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from prunerecover import Report
from prunerecover.callbacks import PruneReport


def fit(folder: Path, logger: Logger) -> None:
    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        default_root_dir=folder,
        max_epochs=2,
        logger=logger,
        callbacks=[prune(), PruneReport(pairs=0)],
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Plain(), loader(), loader(shuffle=False))


@pytest.mark.slow
def test_tensorboard_shows_the_report_and_its_figures(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path)
    fit(tmp_path, logger)
    events = EventAccumulator(logger.log_dir).Reload()
    (text,) = events.Tensors("prune_report/text_summary")
    assert text.tensor_proto.string_val[0].decode() == Report.load(tmp_path / "report").to_markdown()
    assert "prune_report/layers" in events.Tags()["images"]
    assert "surgery/removed_units" in events.Tags()["scalars"]


@pytest.mark.slow
def test_a_csv_logger_has_the_files_beside_its_numbers(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    fit(tmp_path, logger)
    logged = Path(logger.log_dir, "prune_report")
    assert Report.load(logged) == Report.load(tmp_path / "report")
    assert (logged / "layers.png").is_file()
    assert "surgery/removed_units" in Path(logger.log_dir, "metrics.csv").read_text()


def test_weights_and_biases_has_a_table_and_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(save_dir=tmp_path, offline=True)
    fit(tmp_path, logger)
    wandb.finish()
    (media,) = tmp_path.glob("wandb/offline-run-*/files/media")
    assert list(media.glob("images/prune_report/layers_*.png"))
    (table,) = media.glob("table/prune_report/before_and_after_*.json")
    assert '"Parameters"' in table.read_text()
