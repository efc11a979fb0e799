"""DepthPrune: remove blocks, attentions, MLPs or activations while a Trainer trains, tests or predicts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from prunerecover.budget import Budget
from prunerecover.callbacks.announce import announce
from prunerecover.callbacks.artifacts import artifact_folder
from prunerecover.callbacks.capture import capture_inputs
from prunerecover.callbacks.ledger import Ledger
from prunerecover.callbacks.operate import operate
from prunerecover.callbacks.schedule import PruneSchedule, schedule_of
from prunerecover.callbacks.target import find_target
from prunerecover.checkpoint import save_pruned
from prunerecover.depth import plan_depth
from prunerecover.merge import merge as merge_linears
from prunerecover.plan import Plan
from prunerecover.structure import get_module, unwrap
from prunerecover.units import DEPTH_KINDS, find_units

SHARDED = (FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy)


class DepthPrune(pl.Callback):
    """Prune the depth of a network inside any LightningModule, and keep training it.

    The surgery happens at the start of an epoch. Checkpoints hold what was done, so resuming, `test(ckpt_path="best")` and
    weights-only files work; optimizers, schedulers, averaged copies and DDP follow. Several of these on one module compose.

    Args:
        budget: How much goes; exactly one of `budget`, `remove` and `plan`.
        remove: Units per kind, such as {"attention": 2, "activation": 6}.
        plan: A plan, or the path of one, instead of deciding here. Also applied before test, validate and predict when no
            checkpoint says otherwise.
        target: Path of the network inside the LightningModule; default: the single supported one.
        importance: See `plan_depth`.
        loss: See `plan_depth`.
        replace: See `plan_depth`.
        search: See `plan_depth`.
        schedule: When; also as a dict of `PruneSchedule`'s arguments.
        calibration: Number of training samples to calibrate on.
        merge: "copy" saves a merged copy in `pruned/` beside the checkpoints at the end of the fit; "at_surgery" merges the
            live network; "never" does neither.
        ignore: Shell patterns of units that stay.
        seed: Of calibration samples and everything random in planning.

    Raises:
        ValueError: If the arguments do not fit together.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        remove: Mapping[str, int] | None = None,
        plan: str | Path | Plan | None = None,
        target: str | None = None,
        importance: str = "output_divergence",
        loss: Callable[[nn.Module, Any], Tensor] | None = None,
        replace: str = "calibrated",
        search: str = "one_shot",
        schedule: PruneSchedule | dict[str, Any] | None = None,
        calibration: int = 192,
        merge: Literal["copy", "at_surgery", "never"] = "copy",
        ignore: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        if sum(argument is not None for argument in (budget, remove, plan)) != 1:
            raise ValueError(
                'Expected exactly one of budget, remove and plan, e.g. DepthPrune(remove={"attention": 2}).'
            )
        if merge not in ("copy", "at_surgery", "never"):
            raise ValueError(f"Expected argument merge to be 'copy', 'at_surgery' or 'never', but got '{merge}'.")
        if calibration < 1:
            raise ValueError(f"Expected argument calibration to be at least 1 sample, but got {calibration}.")
        if schedule_of(schedule).is_progressive and remove is None and (budget is None or not budget.in_units):
            raise ValueError(
                "Expected a budget in units (remove= or ratio=) with schedule every=..., which removes some each time."
            )
        self.budget = Budget(remove=remove) if remove is not None else budget
        self.plan = Plan.load(plan) if isinstance(plan, str | Path) else plan
        self.schedule = schedule_of(schedule)
        self.target, self.calibration, self.merge, self.seed = target, calibration, merge, seed
        self.planning = {
            "importance": importance,
            "loss": loss,
            "replace": replace,
            "search": search,
            "ignore": tuple(ignore),
        }

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Install the ledger before any checkpoint is read."""
        ledger = Ledger.of(pl_module)
        ledger.from_checkpoint = None
        if isinstance(trainer.strategy, SHARDED):
            self._prune_before_sharding(trainer, pl_module)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Resume from the ledger of a checkpoint; refuse a schedule that does not fit."""
        Ledger.of(pl_module).resume(trainer, pl_module)
        events = self._events(pl_module)
        self.schedule.check_fits([epoch for epoch, _ in events], trainer.max_epochs)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Do the surgeries that are due."""
        ledger, me = Ledger.of(pl_module), self._key(trainer)
        done = sum(event["by"] == me for event in ledger.events)
        for epoch, budget in self._events(pl_module)[done:]:
            if epoch <= trainer.current_epoch:
                self._operate(trainer, pl_module, budget)
        self.log("removed_units", float(sum(len(event["units"]) for event in ledger.events)), prog_bar=True)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Apply a given plan when no checkpoint says otherwise."""
        self._prune_for_evaluation(trainer, pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Apply a given plan when no checkpoint says otherwise; not within a fit."""
        if trainer.state.fn == "validate":
            self._prune_for_evaluation(trainer, pl_module)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Apply a given plan when no checkpoint says otherwise."""
        self._prune_for_evaluation(trainer, pl_module)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save a merged copy beside the checkpoints."""
        folder = artifact_folder(trainer)
        if self.merge != "copy" or folder is None or not trainer.is_global_zero or self._mates(trainer)[-1] is not self:
            return
        ledger = Ledger.of(pl_module)
        for target, plan in ledger.plans.items():
            if plan.edits:
                name = "pruned" if len(ledger.plans) == 1 else f"pruned/{target}"
                network = copy.deepcopy(unwrap(get_module(pl_module, target)))
                save_pruned(network, plan + merge_linears(network), folder / name)

    def _events(self, pl_module: pl.LightningModule) -> list[tuple[int, Budget | None]]:
        """All surgeries of the schedule, done or not; None stands for the given plan."""
        if self.budget is None or not self.budget.in_units:
            return [(self.schedule.start, self.budget)]
        counts = self.budget.counts(self._dense_counts(pl_module))
        return [(epoch, Budget(remove=part)) for epoch, part in self.schedule.events(counts)]

    def _dense_counts(self, pl_module: pl.LightningModule) -> dict[str, int]:
        """Units per kind before any surgery: those that are left and those in the ledger."""
        target = find_target(pl_module, self.target)
        removed = Ledger.of(pl_module).plans.get(target, Plan()).removed
        units = find_units(unwrap(get_module(pl_module, target)))
        return {k: sum(u.kind == k for u in units) + len(removed.get(k, ())) for k in DEPTH_KINDS}

    def _operate(self, trainer: pl.Trainer, pl_module: pl.LightningModule, budget: Budget | None) -> None:
        target = find_target(pl_module, self.target)
        with isolate_rng():
            plan = self.plan if budget is None else self._decide(trainer, pl_module, target, budget)
            plan = trainer.strategy.broadcast(plan)  # decided once: ranks must not differ by a rounding error
            assert plan is not None
            operate(trainer, pl_module, target, plan, merge=self.merge == "at_surgery")
        announce(trainer, Ledger.of(pl_module), self._key(trainer), plan)

    def _decide(self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str, budget: Budget) -> Plan:
        batches = capture_inputs(trainer, pl_module, target, self.calibration, self.seed)
        network = unwrap(get_module(pl_module, target))
        return plan_depth(network, budget, batches=batches, seed=self.seed, **self.planning)

    def _prune_for_evaluation(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        ledger = Ledger.of(pl_module)
        if ledger.from_checkpoint or not ledger.is_dense:
            return
        if self.plan is None:
            rank_zero_warn(
                "DepthPrune(remove=...) decides during a fit: without a checkpoint of a pruned model nothing is pruned now. "
                "Pass ckpt_path=..., or DepthPrune(plan=...)."
            )
            return
        operate(trainer, pl_module, find_target(pl_module, self.target), self.plan, merge=self.merge == "at_surgery")

    def _prune_before_sharding(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Sharded strategies load weights into the wrapped model: the structure must be there before."""
        if self.plan is None:
            raise ValueError(
                f"Expected DepthPrune(plan=...) with {type(trainer.strategy).__name__}, which shards the model before any "
                "surgery could happen. Make the plan beforehand: plan_depth(...).save('plan.json')."
            )
        ledger = Ledger.of(pl_module)
        if ledger.is_dense:
            ledger.apply(pl_module, find_target(pl_module, self.target), self.plan)

    def _key(self, trainer: pl.Trainer) -> str:
        return f"DepthPrune.{self._mates(trainer).index(self)}"

    @staticmethod
    def _mates(trainer: pl.Trainer) -> list[DepthPrune]:
        return [c for c in trainer.callbacks if isinstance(c, DepthPrune)]  # type: ignore[attr-defined]
