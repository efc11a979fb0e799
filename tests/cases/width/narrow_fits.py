"""User's LightningModule with a small convolutional network, and a callback that narrows it at given epochs."""

from __future__ import annotations

import lightning.pytorch as pl
from cases.models.habits import CLASSES, Plain
from cases.width.narrow import REWRITE, STEM, SUM, first_conv, head_edit, neuron_edit, second_conv, without
from cases.width.narrow_models import Residual, SmallCnn
from torch import nn

from prunerecover.callbacks.ledger.callback import LedgerCallback
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.surgery.announce import announce
from prunerecover.callbacks.surgery.in_trainer import apply_in_trainer
from prunerecover.plan.edits import Edit
from prunerecover.surgery.provenance import plan_for


class NarrowAt(LedgerCallback):
    """Applies hand-made edits at the start of epochs."""

    def __init__(self, edits: dict[int, tuple[Edit, ...]]) -> None:
        self.edits = edits

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        ledger = Ledger.of(pl_module)
        for epoch, edits in list(self.edits.items())[len(ledger.made_by("NarrowAt")) :]:
            if epoch <= trainer.current_epoch:
                plan = plan_for(pl_module.net, edits, method="test")
                apply_in_trainer(trainer, pl_module, "net", plan)
                announce(trainer, ledger, "NarrowAt", "net", plan)


class Cnn(Plain):
    """BatchNorm, dropout, and all the habits of Plain."""

    def __init__(self, optimizer: str = "adamw", scheduler: str = "cosine", epochs: int = 4) -> None:
        super().__init__(optimizer, scheduler, epochs)
        self.net = SmallCnn(in_channels=1, classes=CLASSES)


class ResidualCnn(Plain):
    """A shortcut without parameters, and pooling at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 3, 1), Residual(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def at(prefix: str, edit: Edit) -> Edit:
    """Return the edit for a network inside another."""
    data = edit.model_dump()
    data["unit"] = prefix + data["unit"]
    for part in data.get("group", ()):
        part["tensor"] = prefix + part["tensor"]
    return type(edit)(**data)


CNN: dict[int, tuple[Edit, ...]] = {1: (first_conv(),), 2: (second_conv(), first_conv((0,), of=5))}
RESIDUAL: dict[int, tuple[Edit, ...]] = {
    1: (at("1.", REWRITE), at("1.", without("conv", "channel", 8, (0, 2, 5), SUM))),
    2: (at("1.", without("stem", "channel", 4, (1, 2), STEM)),),
}
VIT: dict[int, tuple[Edit, ...]] = {1: (head_edit(), neuron_edit()), 2: (neuron_edit(2),)}
