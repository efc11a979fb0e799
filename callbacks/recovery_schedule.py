"""RecoverySchedule: a warm-up and a decay of the learning rate after each surgery, beside the user's schedulers."""

from __future__ import annotations

import math
from functools import partial
from itertools import cycle, islice
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.optim import Optimizer

from prunerecover.callbacks.calibration.capture import CapturedInputs, capture_inputs, undisturbed
from prunerecover.callbacks.calibration.surgery import training_loss
from prunerecover.callbacks.ledger.callback import LedgerCallback
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.ledger.random_state import isolated, seed_all
from prunerecover.callbacks.pruning import PruneCallback
from prunerecover.callbacks.surgery.artifacts import is_dry_run
from prunerecover.callbacks.surgery.sharding import SHARDED
from prunerecover.model.evaluation import uncompiled
from prunerecover.model.paths import get_module, unwrap
from prunerecover.recovery.scaled_steps import STEPS, ScaledSteps, best_share
from prunerecover.recovery.schedule import DECAY, WARMUP, RecoveryCurve, Shape

LOGGED = "recovery_factor"
SAMPLES = 1024  # of a test of rates, at most; with batches above 64, some batches repeat


class RecoverySchedule(LedgerCallback):
    """Shape the learning rate after each surgery: a warm-up, times a decay to zero until the next surgery or the end.

    A factor, logged as `recovery_factor`, multiplies the rate of each optimizer step within a batch: the rate set by
    the user's schedulers, in every parameter group, adapters included. Outside optimizer steps, rates are unchanged:
    schedulers, monitors of the rate and checkpoints see the user's own. Until the first surgery, the factor is 1. In a
    fit without surgery, of a model pruned before, the recovery begins with the fit. Under manual optimization, a batch
    counts as one step, however many optimizer steps are taken.

    Rates set for a dense network are often too high for a damaged network. So right after each surgery, a few training
    steps are tried at the full rates, at half of them, and so on down to a sixteenth, and undone; the share with the
    lowest loss then multiplies the factor. No rates are tested under manual optimization, where the loss is not
    visible, and with sharded strategies.

    Without Lightning: `recovery_schedule`, which tests no rates.

    Args:
        warmup: Steps of the warm-up (a whole number), or their share of the steps until the next surgery or the end (a
            number below 1); at most all steps. None: 0.1 where rates are tested, else 0.5.
        shape: Shape of the decay, "linear" or "cosine".
        decay: Share of the steps, at the end, in which the rate falls; 0: no decay. None: 0.3 where rates are tested,
            else 1.
        lr: "auto": rates are tested; None: rates are not tested.

    Raises:
        TypeError: If `warmup` or `decay` is no number.
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        warmup: int | float | None = None,
        shape: Shape = "linear",
        decay: float | None = None,
        lr: Literal["auto"] | None = "auto",
    ) -> None:
        if lr not in (None, "auto"):
            raise ValueError(
                f"Expected argument lr to be 'auto' or None, but got {lr!r}. The rate is that of your optimizer; set "
                "it there."
            )
        self.warmup, self.shape, self.decay, self.lr = warmup, shape, decay, lr
        self._curve(tested=True)  # checks the arguments
        self._begun: dict[str, int] = {}
        self._shares: dict[int, float] = {}  # tested shares of the rates, by the number of surgeries before
        self._steps: ScaledSteps | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Expect another fit, unless a checkpoint says when this fit began."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            self._begun, self._shares = {}, {}

    def state_dict(self) -> dict[str, Any]:
        """Keep the beginning of the fit and the tested shares in checkpoints."""
        return {**self._begun, **({"shares": dict(self._shares)} if self._shares else {})}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the fit of a checkpoint."""
        self._begun = dict(state_dict)
        self._shares = self._begun.pop("shares", {})  # type: ignore[assignment]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the beginning of the fit; refuse a fit of unknown length, and optimizers without rates.

        Raises:
            ValueError: If the number of steps is unknown.
            TypeError: If an optimizer is no torch optimizer, or has no learning rate.
        """
        super().on_train_start(trainer, pl_module)
        _check_optimizers(trainer)
        _check_length(trainer, pl_module)
        here = {"events": len(Ledger.of(pl_module).events), "epoch": trainer.current_epoch, "step": trainer.global_step}
        self._begun = self._begun or here

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Scale the steps of the batch; all surgery of the epoch is done."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self.detach()
        factor = self._factor(trainer, pl_module, batch_idx)
        if factor != 1:
            self._steps = ScaledSteps(trainer.optimizers, factor)
        # The same on all ranks: with both arguments, Lightning neither warns about a missing sync nor makes ranks wait.
        pl_module.log(LOGGED, factor, batch_size=1, sync_dist=True, rank_zero_only=True)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Leave the optimizers alone until the next batch: a tuner may use them before."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        self.detach()

    def _factor(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch_idx: int) -> float:
        """Return the factor of a batch, counted from the trainer and the ledger, times the tested share."""
        done = Ledger.of(pl_module).events[self._begun["events"] :]
        pruning = [c for c in trainer.callbacks if isinstance(c, PruneCallback)]  # type: ignore[attr-defined]
        coming = [epoch for c in pruning if (epoch := c.next_surgery(trainer, pl_module)) is not None]
        if coming and not done:
            return 1.0
        tested = self.lr == "auto" and _is_testable(trainer, pl_module)
        share = self._tested(trainer, pl_module, len(done)) if tested else 1.0
        curve = self._curve(tested)
        epoch, step = (done[-1].epoch, done[-1].step) if done else (self._begun["epoch"], self._begun["step"])
        most = math.inf if trainer.max_steps == -1 else trainer.max_steps - step
        if math.isinf(trainer.num_training_batches):
            return share * curve.factor(trainer.global_step - step, int(most))
        per_epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        last = trainer.max_epochs if trainer.max_epochs not in (None, -1) else math.inf
        steps = min((min([last, *coming]) - epoch) * per_epoch, most)
        here = (trainer.current_epoch - epoch) * per_epoch + batch_idx // trainer.accumulate_grad_batches
        return share * curve.factor(here, int(steps))

    def _curve(self, tested: bool) -> RecoveryCurve:
        """Return the warm-up and the decay; an untested rate, perhaps too high, rises slowly and never in full."""
        warmup, decay = (0.1, 0.3) if tested else (WARMUP, DECAY)
        return RecoveryCurve(
            warmup if self.warmup is None else self.warmup, self.shape, decay if self.decay is None else self.decay
        )

    def _tested(self, trainer: pl.Trainer, pl_module: pl.LightningModule, surgeries: int) -> float:
        """Return the share of the rates found by a test at the first batch of a recovery."""
        if surgeries not in self._shares:
            share = best_share_in_trainer(trainer, pl_module, self.network_path(trainer, pl_module))
            rank_zero_info(f"prunerecover: from here on at {share:g} times the learning rates, as tested.")
            self._shares[surgeries] = share
        return self._shares[surgeries]

    def detach(self) -> None:
        """Leave the optimizers alone, with their own rates."""
        if self._steps is not None:
            self._steps.detach()
        self._steps = None


def _check_optimizers(trainer: pl.Trainer) -> None:
    for optimizer in trainer.optimizers:
        rates = [group.get("lr") for group in optimizer.param_groups] if isinstance(optimizer, Optimizer) else [None]
        if any(rate is None for rate in rates):
            raise TypeError(
                f"Expected optimizers of torch with a learning rate in each group, but got {type(optimizer).__name__}. "
                "Remove RecoverySchedule, and shape its rate by its own means."
            )


def _is_testable(trainer: pl.Trainer, pl_module: pl.LightningModule) -> bool:
    """Whether a few steps can be taken and undone: the training step returns its loss, and weights are not sharded."""
    return pl_module.automatic_optimization and not isinstance(trainer.strategy, SHARDED) and not is_dry_run(trainer)


def _check_length(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    """Raise ValueError if the number of steps until the end is unknown."""
    endless = math.isinf(trainer.num_training_batches) or trainer.max_epochs in (None, -1)
    if not pl_module.automatic_optimization:
        if endless or (trainer.max_steps != -1 and not is_dry_run(trainer)):
            raise ValueError(
                "Expected max_epochs, no max_steps, and a loader of known length for RecoverySchedule under manual "
                f"optimization, where a batch is one step, but got max_epochs={trainer.max_epochs}, "
                f"max_steps={trainer.max_steps} and {trainer.num_training_batches} batches. Set max_epochs, and "
                "limit_train_batches if the loader has no length."
            )
    elif endless and trainer.max_steps == -1:
        raise ValueError(
            f"Expected a fit of known length for RecoverySchedule, but got max_epochs={trainer.max_epochs}, no "
            f"max_steps and {trainer.num_training_batches} batches. Set max_steps, or max_epochs and, if the loader "
            "has no length, limit_train_batches."
        )


def best_share_in_trainer(trainer: pl.Trainer, module: pl.LightningModule, target: str) -> float:
    """Return the share of the present learning rates found by `best_share`, the same on all ranks.

    Module, optimizer, fit and random states are restored afterwards.

    Args:
        trainer: Trainer in a fit, before a batch that begins with gradients of zero.
        module: LightningModule with automatic optimization, not sharded.
        target: Path of the pruned network.
    """
    network, step_loss = unwrap(get_module(module, target)), training_loss(trainer, module)
    (optimizer,) = trainer.optimizers
    inputs = capture_inputs(trainer, module, target, SAMPLES, seed=0, most=STEPS)

    def loss(index: int, batch: CapturedInputs) -> Tensor | None:
        seed_all(index)  # the same noise in a step at all rates
        return step_loss(network, batch)

    def clip() -> None:
        with undisturbed(trainer, module):
            module.configure_gradient_clipping(optimizer, trainer.gradient_clip_val, trainer.gradient_clip_algorithm)

    losses = [partial(loss, index, batch) for index, batch in enumerate(islice(cycle(inputs), STEPS))]
    with isolated(), uncompiled():
        found = best_share(module, optimizer, losses, before_step=clip)
    return trainer.strategy.broadcast(found)
