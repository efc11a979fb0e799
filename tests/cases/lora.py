"""Callbacks and trainers of the LoRA tests."""

from __future__ import annotations

import lightning.pytorch as pl
from cases import trainers
from cases.models.habits import Plain, dataset, loader
from cases.trainers import every_epoch

from prunerecover import Budget
from prunerecover.callbacks import DepthPrune, LoRARecover, WidthPrune

IMAGES = dataset().tensors[0]


def depth(**arguments):
    settings = {"remove": {"attention": 1, "activation": 1}, "schedule": {"start": 1}, "calibration": 16}
    return DepthPrune(**{**settings, "importance": "magnitude", **arguments})


def width(**arguments):
    settings = {"budget": Budget(macs=0.2), "schedule": {"start": 1}, "calibration": 16}
    return WidthPrune(**{**settings, "importance": "magnitude", "replace": "zero", **arguments})


def lora(**arguments):
    return LoRARecover(**{"rank": 2, "dropout": 0.1, **arguments})


def trainer_of(folder, *callbacks, epochs=3, **settings):
    return trainers.trainer_of(folder, *callbacks, every_epoch(folder), epochs=epochs, **settings)


def fit(folder, *callbacks, make=Plain, module=None, data=None, epochs=3, **settings):
    module = make() if module is None else module
    val = loader(shuffle=False) if data is None else None
    settings = {"data": data, "val": val, "epochs": epochs, **settings}
    return module, trainers.fit(folder, module, *callbacks, every_epoch(folder), **settings)


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
