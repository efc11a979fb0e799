"""Trainers that prune users' own modules, for several test files."""

from __future__ import annotations

from types import SimpleNamespace

import lightning.pytorch as pl
import torch
from cases.models.habits import loader
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from prunerecover.callbacks import DepthPrune

REMOVE = {"attention": 1, "activation": 1}
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


class Around(pl.LightningModule):
    """Module that trains a network by SGD on labelled batches, and nothing else."""

    def __init__(self, network):
        super().__init__()
        self.net = network

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)


def trainer_of(folder, *callbacks, epochs=2, **settings):
    return pl.Trainer(max_epochs=epochs, callbacks=list(callbacks), default_root_dir=folder, **{**QUIET, **settings})


def prune(**arguments):
    """Return a DepthPrune that is cheap in all parts outside the test: by magnitude, with nothing fitted, or a plan."""
    defaults = {"schedule": {"start": 1}, "calibration": 16, "merge": "never"}
    if "plan" not in arguments:
        defaults |= {"remove": REMOVE, "importance": "magnitude", "replace": "zero"}
    return DepthPrune(**{**defaults, **arguments})


def every_epoch(folder):
    """A file of each epoch, `epoch=N.ckpt`."""
    return ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)


def fit(folder, module, *callbacks, data=None, val=None, resume=None, **settings):
    """Train from fixed seeds, whatever was drawn for the module, and return the Trainer."""
    pl.seed_everything(3, verbose=False)
    runner = trainer_of(folder, *callbacks, **settings)
    runner.fit(module, loader() if data is None else data, val, ckpt_path=resume)
    return runner


def assert_same(left: nn.Module, right: nn.Module) -> None:
    a, b = left.state_dict(), right.state_dict()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def sharded(strategy, *callbacks):
    """Return a substitute for a Trainer with a strategy that cannot run here."""
    return SimpleNamespace(
        strategy=strategy,
        precision_plugin=None,
        callbacks=list(callbacks),
        state=SimpleNamespace(fn="fit"),
        loggers=[],
        checkpoint_callback=None,
        fast_dev_run=False,
        current_epoch=0,
        global_step=0,
        fit_loop=pl.Trainer(accelerator="cpu", barebones=True).fit_loop,
    )
