"""Trainers that prune users' own modules, for several test files."""

from __future__ import annotations

import lightning.pytorch as pl
from habits import (
    loader,
)

from prunerecover.callbacks import DepthPrune

REMOVE = {"attention": 1, "activation": 1}


def trainer_of(folder, *callbacks, epochs=2, **settings):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return pl.Trainer(max_epochs=epochs, callbacks=list(callbacks), default_root_dir=folder, **{**quiet, **settings})


def prune(**arguments):
    defaults = {"remove": REMOVE, "schedule": {"start": 1}, "calibration": 16, "merge": "never"}
    return DepthPrune(**{**defaults, **arguments})


def fit(folder, module, *callbacks, data=None, **settings):
    pl.seed_everything(3, verbose=False)
    runner = trainer_of(folder, *callbacks, **settings)
    runner.fit(module, loader() if data is None else data)
    return runner
