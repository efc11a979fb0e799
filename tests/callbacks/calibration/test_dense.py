"""In a fit, too, the dense network that the pruned one learns from has BatchNorm statistics of its weights."""

from __future__ import annotations

import copy
from typing import Any

import lightning.pytorch as pl
import torch
from cases.support.stale import anew, same, stale, told
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import CatMetric, MeanMetric

from prunerecover import Budget
from prunerecover.callbacks import DistillRecover, WidthPrune
from prunerecover.callbacks.calibration.capture import capture_inputs
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.surgery.reconstruction import Reconstruction
from prunerecover.plan.plan import Plan


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = stale()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-3)


class Kept(Reconstruction):
    """Notes what the pruned network is compared with, and what it is afterwards."""

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


def fit(module: pl.LightningModule, *callbacks: pl.Callback) -> None:
    """Train for one step, after a surgery at its start."""
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=1, limit_train_batches=1, accelerator="cpu", callbacks=list(callbacks), **quiet)
    trainer.fit(module, DataLoader(TensorDataset(*told()), batch_size=16))


def test_teacher_and_reference_have_statistics_of_the_weights() -> None:
    teacher, narrow, module = DistillRecover(), WidthPrune(Budget(macs=0.4)), Module()
    narrow.recovery = kept = Kept(None, seed=0)
    watch, before = Watch(teacher), copy.deepcopy(module.net)
    fit(module, watch, teacher, narrow)
    assert not same(watch.expected, before)
    assert watch.teacher is not None
    assert same(watch.teacher, watch.expected)
    assert kept.compared is not None
    assert same(kept.compared, watch.expected)
    assert torch.isin(kept.narrowed[1].running_mean, before[1].running_mean).all()  # the user's own are left alone


class Metered(Module):
    """Keeps a running mean of its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.losses = MeanMetric(), CatMetric()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.seen.update(loss.detach())
        self.losses.update(loss.detach())
        return loss


def test_metrics_of_the_training_step_do_not_count_what_is_measured() -> None:
    module = Metered()
    fit(module, WidthPrune(Budget(macs=0.4)))
    assert float(module.seen.weight) == 1
    assert module.losses.compute().numel() == 1
