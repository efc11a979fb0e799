"""User's module with the network's size among the validation metrics, for steps with known verdicts."""

from __future__ import annotations

import lightning.pytorch as pl
from cases.models.habits import Plain, loader
from cases.trainers import fit

from prunerecover import Budget, DepthPrune, Quality
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.checkpoint.ledger_record import QualityTrail


class Sized(Plain):
    """Logs the number of attentions as a metric."""

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        there = [any(True for _ in block.attn.parameters()) for block in self.net.blocks]
        self.log("attentions", float(sum(there)))


def one_by_one(drop: float = 1, **arguments) -> DepthPrune:
    """Prune attentions until `drop` of the three are removed, ranked by cheap magnitude."""
    defaults = {"step": Budget(remove={"attention": 1}), "replace": "zero", "importance": "magnitude"}
    defaults |= {"calibration": 16, "merge": "never"}
    return DepthPrune(Quality("attentions", drop=drop), **{**defaults, **arguments})


def trail_of(module: pl.LightningModule) -> QualityTrail:
    (trail,) = Ledger.of(module).quality.values()
    return trail


def pruned(folder, *callbacks, epochs: int = 4, make=Sized, **settings):
    """Fit with validation, always the same module; return the module and the Trainer."""
    pl.seed_everything(5, verbose=False)
    module = make()
    return module, fit(folder, module, *callbacks, epochs=epochs, val=loader(shuffle=False), **settings)
