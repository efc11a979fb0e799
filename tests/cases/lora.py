"""Callbacks and trainers of the LoRA tests."""

from __future__ import annotations

import lightning.pytorch as pl
from cases.models.habits import Plain, dataset, loader
from lightning.pytorch.callbacks import ModelCheckpoint

from prunerecover import Budget
from prunerecover.callbacks import DepthPrune, LoRARecover, WidthPrune

IMAGES = dataset().tensors[0]


def depth(**arguments):
    settings = {"remove": {"attention": 1, "activation": 1}, "schedule": {"start": 1}, "calibration": 16}
    return DepthPrune(**{**settings, "importance": "magnitude", **arguments})


def width(**arguments):
    return WidthPrune(**{"budget": Budget(macs=0.2), "schedule": {"start": 1}, "calibration": 16, **arguments})


def lora(**arguments):
    return LoRARecover(**{"rank": 2, "dropout": 0.1, **arguments})


def trainer_of(folder, *callbacks, epochs=3, **settings):
    every = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return pl.Trainer(max_epochs=epochs, callbacks=[*callbacks, every], **{**quiet, **settings})


def fit(folder, *callbacks, make=Plain, module=None, data=None, resume=None, **settings):
    pl.seed_everything(7, verbose=False)
    module = make() if module is None else module
    runner = trainer_of(folder, *callbacks, **settings)
    val = loader(shuffle=False) if data is None else None
    runner.fit(module, loader() if data is None else data, val, ckpt_path=resume)
    return module, runner


class Watch(pl.Callback):
    """Calls `look(trainer, module)` at the start and end of each epoch's training."""

    def __init__(self, look):
        self.look, self.first, self.last = look, {}, {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == 0:
            self.first[trainer.current_epoch] = self.look(trainer, pl_module)

    def on_train_epoch_end(self, trainer, pl_module):
        self.last[trainer.current_epoch] = self.look(trainer, pl_module)


def held(runner):
    return {p for optimizer in runner.optimizers for group in optimizer.param_groups for p in group["params"]}
