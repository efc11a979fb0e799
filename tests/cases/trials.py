"""Data, plans and trainers for tests of trials, and the results of runs by hand."""

from __future__ import annotations

import random
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from cases.models.habits import Plain, dataset, loader

from prunerecover import DepthPrune, Plan, plan_depth
from prunerecover.boundary.search import Trial
from prunerecover.callbacks.trials.runner import TrialSettings

LOSS = TrialSettings(metric="val_loss", scale=1.0)  # a loss tells more apart than the share of 48 images
CALIBRATION = [dataset().tensors[0][:16]]
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


class Data(pl.LightningDataModule):
    """Tiny data with use of the trainer, and memory freed at teardown, as in users' own."""

    def __init__(self) -> None:
        super().__init__()
        self.held: Any = None

    def setup(self, stage: str) -> None:
        self.held = dataset()

    def train_dataloader(self) -> Any:
        assert self.trainer is not None
        assert self.held is not None
        return loader()

    def val_dataloader(self) -> Any:
        return loader(shuffle=False)

    def teardown(self, stage: str) -> None:
        self.held = None


def seeded(make: type[pl.LightningModule] = Plain) -> pl.LightningModule:
    torch.manual_seed(0)
    return make()


def plan_of(**removed: int) -> Plan:
    """Return a plan for the initial network of every module here."""
    return plan_depth(seeded().net, remove=removed, batches=CALIBRATION, search="one_shot")


def by_hand(module: pl.LightningModule, trial: Trial, *callbacks: pl.Callback, **settings: Any) -> pl.Trainer:
    """A run without a TrialRunner; trains `module` itself."""
    torch.manual_seed(trial.seed)
    random.seed(trial.seed)
    np.random.seed(trial.seed)
    runner = pl.Trainer(
        **{"max_epochs": 1, "accelerator": "cpu", "num_sanity_val_steps": 0, **QUIET, **settings},
        callbacks=[DepthPrune(plan=trial.plan, target="net", merge="never"), *callbacks] if trial.plan.edits else [],
    )
    runner.fit(module, datamodule=Data())
    return runner
