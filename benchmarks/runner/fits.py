"""Fits of benchmarks: an ordinary module in a silent Trainer, and plain training on given batches."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import lightning.pytorch as pl
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from prunerecover.callbacks.ledger.ledger import Ledger

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}
Loss = Callable[[nn.Module, Any], Tensor]


class Learner(pl.LightningModule):
    """An ordinary module around a network.

    Args:
        network: Network to train, at the path "model".
        loss: Loss of the network on a batch.
        optimizer: Maker of an optimizer from parameters.
        schedule: Maker of a scheduler from the optimizer and the number of steps; None: a constant rate.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Loss,
        optimizer: Callable[[Any], Optimizer],
        schedule: Callable[[Optimizer, int], LRScheduler] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.loss, self.optimizer, self.schedule = network, loss, optimizer, schedule

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss."""
        return self.loss(self.model, batch)

    def configure_optimizers(self) -> Any:
        """Return the optimizer, and the schedule over steps if any."""
        optimizer = self.optimizer(self.parameters())
        if self.schedule is None:
            return optimizer
        scheduler = self.schedule(optimizer, int(self.trainer.estimated_stepping_batches))
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class AfterSurgery(pl.Callback):
    """Network right after the surgery.

    Args:
        stop: Whether the fit ends then.
    """

    network: nn.Module | None = None

    def __init__(self, stop: bool = False) -> None:
        self.stop = stop

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Copy the network before the first step."""
        if self.network is None:
            self.network = Ledger.of(pl_module).plain_copy(pl_module, "model").eval()
            trainer.should_stop = self.stop


def fit(module: pl.LightningModule, data: Any, callbacks: Iterable[pl.Callback] = (), **settings: Any) -> pl.Trainer:
    """Fit a module on the CPU, without files, and return the Trainer.

    Args:
        module: Module to train.
        data: Training batches, or a datamodule.
        callbacks: Callbacks of the Trainer.
        settings: Further arguments of the Trainer.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = {"accelerator": "cpu", "default_root_dir": folder, **QUIET, **settings}
        trainer = pl.Trainer(callbacks=[*callbacks], **given)
        trainer.fit(module, data)
    if trainer.max_steps not in (-1, trainer.global_step):
        raise RuntimeError(f"Expected {trainer.max_steps} steps, but the fit made {trainer.global_step}.")
    return trainer


def train(
    network: nn.Module,
    batches: Iterable[Any],
    loss: Loss,
    optimizer: Optimizer,
    scheduler: LRScheduler | None = None,
    clip: float = 0.0,
) -> nn.Module:
    """Return a network after a step on each batch, in evaluation mode.

    Args:
        network: Network, trained in place.
        batches: Training batches.
        loss: Loss of the network on a batch.
        optimizer: Optimizer of the network's parameters.
        scheduler: Scheduler of the rate over steps; None: a constant rate.
        clip: Largest norm of all gradients; 0: any.
    """
    network.train()
    for batch in batches:
        optimizer.zero_grad()
        loss(network, batch).backward()  # type: ignore[no-untyped-call]
        if clip:
            nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return network.eval()
