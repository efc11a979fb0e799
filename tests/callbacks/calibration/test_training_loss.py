"""Importances that need a loss take the one that the user's training step returns."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
import torch
from cases.models.habits import Manual, Plain, loader
from torch.nn import functional as F

from prunerecover.callbacks import DepthPrune
from prunerecover.callbacks.ledger.ledger import Ledger


class Quiet(Plain):
    """No augmentation, so that a loss can be computed twice."""

    def __init__(self) -> None:
        super().__init__(drop_path_rate=0.0)

    def loss(self, batch):
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)


class Wrapped(Quiet):
    """Returns a mapping, and takes the batch alone."""

    def training_step(self, batch):
        return {"loss": super().training_step(batch, 0), "note": 1}


def own_loss(network, inputs):
    return F.cross_entropy(network(*inputs.args, **inputs.kwargs), inputs.batch[1])


def importance_of(folder, module, **arguments):
    prune = DepthPrune(remove={"attention": 1, "activation": 1}, calibration=16, merge="never", **arguments)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    runner = pl.Trainer(max_epochs=1, default_root_dir=folder, callbacks=[prune], **quiet)
    torch.manual_seed(0)
    runner.fit(module, loader(), loader(shuffle=False))
    (plan,) = Ledger.of(module).plans.values()
    return plan.evidence["importance"], runner


@pytest.mark.parametrize("importance", ["gate_gradient", "taylor"])
@pytest.mark.parametrize("make", [Quiet, pytest.param(Wrapped, marks=pytest.mark.slow)])
def test_default_loss_is_the_training_steps(tmp_path, make, importance):
    torch.manual_seed(1)
    module = make()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    found, runner = importance_of(tmp_path, module, importance=importance)
    assert set(runner.callback_metrics) >= {"train_loss", "val_acc"}  # the step logs again once it trains
    again = make()
    again.load_state_dict(state)
    expected, _ = importance_of(tmp_path, again, importance=importance, loss=own_loss)
    assert found == pytest.approx(expected, rel=1e-5)
    assert len(set(found.values())) == 6


def test_manual_optimization_has_to_say(tmp_path):
    with pytest.raises(ValueError, match="because Manual optimizes manually and its training step does not say"):
        importance_of(tmp_path, Manual(), importance="gate_gradient")


def test_lowest_of_each_type_goes_in_turn_while_training(tmp_path):
    """Stage 1, step 2 of BoundaryDPT."""
    torch.manual_seed(1)
    module = Quiet()
    schedule = {"every": 1, "step": 1, "alternate": True}
    prune = DepthPrune(
        remove={"attention": 2, "activation": 2},
        importance="gate_gradient",
        replace="identity",
        schedule=schedule,
        calibration=16,
        merge="never",
    )
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    pl.Trainer(max_epochs=4, default_root_dir=tmp_path, callbacks=[prune], **quiet).fit(module, loader())
    kinds = [event.units[0].rpartition(".")[2] for event in Ledger.of(module).events]
    assert kinds == ["attn", "act", "attn", "act"]
    assert {e["leaves"] for e in Ledger.of(module).plans["net"].to_dict()["edits"]} == {"identity"}
