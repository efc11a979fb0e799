"""Fits that cannot keep a quality, and files that cannot be gone on with."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
import torch
from cases.fits.quality import Sized, one_by_one, pruned
from cases.trainers import every_epoch
from torch import nn

from prunerecover import Quality, WidthPrune

LOSS = Quality("val_loss", drop=10.0, mode="min")
SETTINGS = {"calibration": 16, "merge": "never"}


class Other(pl.LightningModule):
    """Has no validation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Sized().net

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (
            lambda f: pruned(f, WidthPrune(Quality("val_ac", drop=0.1), **SETTINGS)),
            "Expected 'val_ac' among what validation logs, but that is val_loss, val_acc, attentions. Log it in",
        ),
        (
            lambda f: pruned(f, WidthPrune(Quality("val_acc", drop=0.1, baseline=1.5), **SETTINGS)),
            "Expected val_acc of the network before the first step to be within 0.1 of baseline=1.5, but it is",
        ),
        (
            lambda f: pruned(f, WidthPrune(Quality("quality", drop=0.1), **SETTINGS), make=NeverANumber),
            "Expected a number as quality of the network before the first step, but got nan",
        ),
        (lambda f: pruned(f, one_by_one(), make=Other), "Expected a fit with validation for Quality"),
        (lambda f: pruned(f, one_by_one(), limit_val_batches=0), "Expected a fit with validation for Quality"),
        (
            lambda f: pruned(f, one_by_one(), WidthPrune(LOSS, **SETTINGS)),
            "Expected one callback that prunes until a metric falls, but got 2",
        ),
        (lambda f: pruned(f, one_by_one(), epochs=1), "Expected all surgeries before max_epochs=1"),
    ],
)
def test_a_fit_that_cannot_keep_the_quality_is_refused(fit, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        fit(tmp_path)


class NeverANumber(Sized):
    def validation_step(self, batch, batch_idx):
        self.log("quality", float("nan"))


def test_another_step_is_not_resumed_with(tmp_path):
    pruned(tmp_path, one_by_one(), every_epoch(tmp_path))
    other = one_by_one(drop=2)
    with pytest.raises(ValueError, match=r"Expected DepthPrune.0 with the arguments of the run that is resumed"):
        pruned(tmp_path / "on", other, resume=tmp_path / "epoch=0.ckpt")


@pytest.mark.slow
def test_a_file_without_what_was_before_the_step_is_not_gone_on_with(tmp_path):
    pruned(tmp_path, one_by_one(), every_epoch(tmp_path))
    content = torch.load(tmp_path / "epoch=1.ckpt", weights_only=True)
    del content["prunerecover_kept"]
    torch.save(content, tmp_path / "cut.ckpt")
    with pytest.raises(RuntimeError, match="Expected the network of before the last step in the checkpoint"):
        pruned(tmp_path / "on", one_by_one(), resume=tmp_path / "cut.ckpt")
