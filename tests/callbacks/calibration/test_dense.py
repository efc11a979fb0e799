"""The dense teacher of a fit, too, has matching BatchNorm statistics."""

from __future__ import annotations

import copy
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.models.habits import Manual, Unaugmented, loader
from cases.support.stale import anew, same, stale, told
from cases.trainers import Around, fit, prune
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import CatMetric, MeanMetric

from prunerecover import Budget
from prunerecover.callbacks import DistillRecover, WidthPrune
from prunerecover.callbacks.calibration.capture import capture_inputs
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.surgery.reconstruction import Reconstruction
from prunerecover.plan.plan import Plan


class Kept(Reconstruction):
    """Notes the reference of the pruned network, and the final state."""

    def keep(self, network: nn.Module, plan: Plan) -> nn.Module | None:
        self.compared = super().keep(network, plan)
        return self.compared

    def recover(self, surgery: Surgery, plan: Plan, before: nn.Module | None) -> str:
        self.narrowed = copy.deepcopy(surgery.network)
        return super().recover(surgery, plan, before)


class Watch(pl.Callback):
    """Notes the dense network, with statistics estimated anew, and the teacher in the first step."""

    def __init__(self, teacher: DistillRecover) -> None:
        self.of = teacher

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        inputs = capture_inputs(trainer, pl_module, "net", 256, seed=0)
        self.expected = anew(pl_module.net, [each.args[0] for each in inputs])

    def on_train_batch_start(self, *_: Any) -> None:
        self.teacher = self.of._network


def one_step(module: pl.LightningModule, *callbacks: pl.Callback) -> None:
    """Train for a step, after a surgery at the start."""
    data = DataLoader(TensorDataset(*told()), batch_size=16)
    fit(None, module, *callbacks, data=data, epochs=1, limit_train_batches=1, enable_checkpointing=False)


def test_teacher_and_reference_have_statistics_of_the_weights() -> None:
    teacher, narrow, module = DistillRecover(), WidthPrune(Budget(macs=0.4)), Around(stale())
    narrow.recovery = kept = Kept(None, seed=0)
    watch, before = Watch(teacher), copy.deepcopy(module.net)
    one_step(module, watch, teacher, narrow)
    assert not same(watch.expected, before)
    assert watch.teacher is not None
    assert same(watch.teacher, watch.expected)
    assert kept.compared is not None
    assert same(kept.compared, watch.expected)
    assert torch.isin(kept.narrowed[1].running_mean, before[1].running_mean).all()  # the user's own are left alone


class Metered(Around):
    """Keeps a running mean of the loss."""

    def __init__(self) -> None:
        super().__init__(stale())
        self.seen, self.losses = MeanMetric(), CatMetric()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.seen.update(loss.detach())
        self.losses.update(loss.detach())
        return loss


def test_metrics_of_the_training_step_do_not_count_what_is_measured() -> None:
    module = Metered()
    one_step(module, WidthPrune(Budget(macs=0.4)))
    assert float(module.seen.weight) == 1
    assert module.losses.compute().numel() == 1


class Quiet(Unaugmented):
    """Draws no noise, for repeated losses."""

    def __init__(self) -> None:
        super().__init__(drop_path_rate=0.0)


class Wrapped(Quiet):
    """Returns a mapping, and takes the batch alone."""

    def training_step(self, batch):
        return {"loss": super().training_step(batch, 0), "note": 1}


def own_loss(network, batch):
    return F.cross_entropy(network(batch[0]), batch[1])


def importance_of(folder, module, **arguments):
    runner = fit(folder, module, prune(schedule=0, **arguments), val=loader(shuffle=False), epochs=1)
    (plan,) = Ledger.of(module).plans.values()
    return plan.evidence["importance"], runner


@pytest.mark.parametrize(("make", "importance"), [(Quiet, "taylor"), (Wrapped, "gate_gradient")])
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
    with pytest.raises(ValueError, match="because Manual optimizes manually and its training step does not return"):
        importance_of(tmp_path, Manual(), importance="gate_gradient")
