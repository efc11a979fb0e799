"""PruneCallback: pruning of a network while a Trainer trains, tests or predicts.

The callback has parts: `planning` makes plans, `surgeries` holds the schedule, `recovery` repairs the network after
surgery, and `surgery` changes the model. `DepthPrune`, `WidthPrune` and `Prune` each add a planning.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn

from prunerecover.callbacks.arguments import Merge, Schedule, check_merge
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.ledger.callback import LedgerCallback
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.ledger.random_state import isolated, seed_all
from prunerecover.callbacks.ledger.target import find_network
from prunerecover.callbacks.planning.base import Planning, planning_progress
from prunerecover.callbacks.schedules.quality import surgeries_of
from prunerecover.callbacks.schedules.schedule import PruneSchedule, schedule_of
from prunerecover.callbacks.schedules.scheduled import GivenPlan
from prunerecover.callbacks.schedules.steps import step_of
from prunerecover.callbacks.surgery import sharding
from prunerecover.callbacks.surgery.announce import announce, warn_of_launcher, warn_of_missing, warn_of_untrained
from prunerecover.callbacks.surgery.artifacts import is_dry_run
from prunerecover.callbacks.surgery.in_trainer import apply_in_trainer, merge_adapters_in_trainer, merge_in_trainer
from prunerecover.callbacks.surgery.reconstruction import Reconstruct, Reconstruction
from prunerecover.model.arguments import check_whole
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.quality import Quality

File = dict[str, Any]  # a checkpoint


class PruneCallback(LedgerCallback):
    """Prune a network inside any LightningModule, and keep training it; see also `SurgeryArguments`.

    Args:
        planning: Kind of planning, made of the remaining arguments.
        budget: Amount to remove, or the quality to keep in steps; None: set by a plan or a tolerance.
        calibration: Number of training samples for planning, reconstruction and recalibration of BatchNorm.
        arguments: Arguments of the planning.

    Raises:
        ValueError: If the arguments do not fit together.
        TypeError: If an argument has the wrong type.
    """

    prunes = True

    def __init__(
        self,
        planning: type[Planning],
        budget: Budget | Quality | None,
        calibration: int,
        *,
        step: float | Budget | None = None,
        plan: str | Path | Plan | None = None,
        target: str | None = None,
        schedule: Schedule | None = None,
        merge: Merge = "copy",
        reconstruct: Reconstruct = None,
        **arguments: Any,
    ) -> None:
        if plan is not None:
            planning.check_alone(arguments)
        self.planning = planning(**arguments)
        if plan is None:
            self.planning.check_budget(step_of(step, budget) if isinstance(budget, Quality) else budget)
        self.schedule, self.budget, self.step, self.target = schedule_of(schedule), budget, step, target
        self.surgeries = surgeries_of(budget, step, self.schedule, lambda module: find_network(module, self.target))
        self.seed: int = self.planning.config.seed
        self.recovery = Reconstruction(reconstruct, self.seed)
        self.given = GivenPlan(plan)
        check_merge(merge)
        check_whole("calibration", calibration, 1)
        self.calibration, self.merge = calibration, merge
        self._early = sharding.EarlySurgery()

    @property
    def config(self) -> Any:
        """All arguments of the planning but the budget."""
        return self.planning.config

    @property
    def plan(self) -> Plan | None:
        """The given plan, once read; None: the plan is made here."""
        return self.given.plan

    def _arguments(self, **more: Any) -> dict[str, Any]:
        usual = {"schedule": None} if self.schedule == PruneSchedule() else {}
        return super()._arguments(plan=self.given.said, **usual, **more)

    def decide(self, surgery: Surgery, budget: Budget | None) -> Plan:
        """Return a plan for the network in its present state; see `Planning.decide`."""
        return self.planning.decide(surgery, budget)

    def next_surgery(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> int | None:
        """Return the epoch or the step of the next surgery, in the schedule's unit; None: all are done."""
        return next((epoch for epoch, _ in self._due_surgeries(trainer, pl_module)), None)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Read the plan file; install the ledger before any checkpoint is read.

        Raises:
            FileNotFoundError: If the plan file is missing, and the fit is sharded.
            ValueError: If the plan file cannot be read or reconstruction is asked for, and the fit is sharded.
        """
        if stage == "fit":
            self.recovery.check_strategy(trainer)
            self.surgeries.begin_fit()
        super().setup(trainer, pl_module, stage)
        self.given.read()
        if isinstance(trainer.strategy, sharding.SHARDED):
            self.given.check_was_read()
            plan = sharding.given_early(trainer, self._name, self.plan, self.schedule.start)
            self._begin(trainer, pl_module)
            if not Ledger.of(pl_module).made_by(self._key(trainer)):
                target = find_network(pl_module, self.target)
                self._early.operate(trainer, pl_module, target, plan, self._key(trainer))

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Resume from the ledger of a checkpoint; refuse an impossible schedule or network.

        Raises:
            FileNotFoundError: If the plan file is missing, and no checkpoint holds the surgery of the plan.
            ValueError: If the plan file cannot be read, and no checkpoint holds the surgery, or arguments do not fit.
        """
        super().on_fit_start(trainer, pl_module)
        ledger, me = Ledger.of(pl_module), self._key(trainer)
        self.given.check_was_read(unless=bool(self.budget is None and ledger.from_checkpoint and ledger.made_by(me)))
        self._begin(trainer, pl_module)
        left = self._due_surgeries(trainer, pl_module)
        if not left and not ledger.made_by(me):
            rank_zero_warn(f"{me} will remove nothing: {self.budget} is less than one unit.")
        network = self._network(pl_module)
        if not is_dry_run(trainer):
            self.surgeries.check_fit(trainer, pl_module, me)
            if left and left[0][0] == 0 and ledger.from_checkpoint is None:
                warn_of_untrained(network, me)
        if not ledger.made_by(me):
            self.planning.check_network(network)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse budgets beyond the later surgeries, and, under a sharded strategy, fitted tensors of other weights."""
        super().on_train_start(trainer, pl_module)
        self._early.finish(Ledger.of(pl_module))
        self._check_ahead(trainer, pl_module)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Do the surgeries due now."""
        super().on_train_epoch_start(trainer, pl_module)
        self.surgeries.judge(trainer, pl_module, self._key(trainer))
        for moment, budget in self._due_surgeries(trainer, pl_module):
            if moment <= self.schedule.now(trainer) or is_dry_run(trainer):  # a trial run tries the surgery, too
                operate = partial(self._operate, trainer, pl_module, budget)
                self.surgeries.operate(trainer, pl_module, self._key(trainer), operate)
        removed = float(Ledger.of(pl_module).removed_units)
        # The same on all ranks: with both arguments, Lightning neither warns about a missing sync nor makes ranks wait.
        pl_module.log("removed_units", removed, prog_bar=True, batch_size=1, sync_dist=True, rank_zero_only=True)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the random numbers of training; note the metric of a quality budget."""
        super().on_validation_end(trainer, pl_module)
        self.surgeries.note(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Bring the network to the wanted quality before files and reports are written."""
        self.surgeries.settle(trainer, pl_module, self._key(trainer))

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: File) -> None:
        """Keep the state before a step, in case the step is undone."""
        self.surgeries.save(checkpoint, self._key(trainer))

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: File) -> None:
        """Read the state before a step, in case the step is undone."""
        self.surgeries.load(checkpoint, self._key(trainer))

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Apply the given plan, unless a checkpoint holds surgeries."""
        self._prune_for_evaluation(trainer, pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Apply the given plan, unless a checkpoint holds surgeries; not within a fit."""
        if trainer.state.fn == "validate":
            self._prune_for_evaluation(trainer, pl_module)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Apply the given plan, unless a checkpoint holds surgeries."""
        self._prune_for_evaluation(trainer, pl_module)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save a merged copy beside the checkpoints; warn about surgeries left undone."""
        self.surgeries.end_fit(trainer, pl_module, self._key(trainer))
        if siblings(trainer)[0] is self:
            warn_of_launcher(trainer, Ledger.of(pl_module))
        if next((sibling for sibling in siblings(trainer) if sibling.merge == "copy"), None) is self:
            sharding.save_copy(trainer, pl_module)

    def _operate(self, trainer: pl.Trainer, pl_module: pl.LightningModule, budget: Budget | None) -> None:
        target, started = find_network(pl_module, self.target), time.perf_counter()
        surgery = Surgery(trainer, pl_module, target, self.calibration, self.seed)
        with isolated(), planning_progress(trainer, f"{self._name}: planning"):
            seed_all(self.seed)  # scoring by the training step may draw noise, and a resumed run has drawn less by now
            merge_adapters_in_trainer(trainer, pl_module, target)
            decide = partial(self._decide, surgery, budget)
            plan = self.surgeries.decided(decide, Ledger.of(pl_module), self._key(trainer))
            seconds = time.perf_counter() - started if self.plan is None else None
            plan = trainer.strategy.broadcast(plan)  # decided once: ranks must not differ by a rounding error
            if not plan.edits and isinstance(self.budget, Quality):  # no further step comes
                return
            taken = trainer.strategy.broadcast(self.surgeries.taken(surgery, plan))
            before = self.recovery.keep(surgery.dense, plan)
            kept = self._apply(surgery, plan, before)
        announce(trainer, Ledger.of(pl_module), self._key(trainer), target, plan, seconds, taken, kept)

    def _apply(self, surgery: Surgery, plan: Plan, before: nn.Module | None) -> str:
        """Change the network and everything attached to it; return the kept recovery, in words."""
        where = surgery.trainer, surgery.module, surgery.target
        apply_in_trainer(*where, plan)
        kept = self.recovery.recover(surgery, plan, before)
        if plan.edits and self.merge == "at_surgery":
            merge_in_trainer(*where)
        return kept

    def _decide(self, surgery: Surgery, budget: Budget | None) -> Plan:
        if budget is not None:
            events = Ledger.of(surgery.module).made_by(self._key(surgery.trainer))
            budget = budget.remaining(event.taken for event in events)
            if budget is None:  # earlier surgeries have removed enough
                return Plan()
        return self.decide(surgery, budget) if self.plan is None else self.given.fitted(surgery)

    def _prune_for_evaluation(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        ledger = Ledger.of(pl_module)
        self._early.finish(ledger)
        plan = self.given.before_evaluation(ledger, lambda: self._network(pl_module), self._name)
        if plan is None:
            return
        target = find_network(pl_module, self.target)
        self._begin(trainer, pl_module)
        merge_adapters_in_trainer(trainer, pl_module, target)
        self._apply(Surgery(trainer, pl_module, target, self.calibration), plan, None)
        sharding.warn_of_statistics(self._network(pl_module))
        announce(trainer, ledger, self._key(trainer), target, plan)

    def _check_ahead(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check the whole budget before another callback prunes, if a surgery lies ahead."""
        ledger = Ledger.of(pl_module)
        if self.plan is not None or ledger.from_checkpoint or is_dry_run(trainer) or ledger.made_by(self._key(trainer)):
            return
        left = self._due_surgeries(trainer, pl_module)
        target = find_network(pl_module, self.target)
        if not left or left[-1][0] <= self.schedule.now(trainer) or target in ledger.adapters:
            return
        others = [c for c in siblings(trainer) if c is not self and find_network(pl_module, c.target) == target]
        theirs = [epoch for other in others for epoch, _ in other._due_surgeries(trainer, pl_module)]
        alone = [budget for epoch, budget in left if epoch < min(theirs, default=epoch + 1)]
        with isolated(), planning_progress(trainer, f"{self._name}: checking"):
            surgery = Surgery(trainer, pl_module, target, self.calibration, self.seed, most=1)
            self.planning.check_feasible(surgery, alone[-1] if alone else None, self.surgeries.budget)

    def _begin(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the state before the first surgery, unless this schedule is already under way."""
        ledger, me = Ledger.of(pl_module), self._key(trainer)
        if siblings(trainer)[0] is self:
            warn_of_missing(ledger, {sibling._key(trainer) for sibling in siblings(trainer)})
        asked = self.surgeries.asked(self.plan, self.planning.signature)
        if self.given.unread is not None and me in ledger.begun:
            asked["plan"] = ledger.begun[me].asked.get("plan")
        network = self._network(pl_module)
        self.surgeries.begin(ledger, me, asked, lambda: self.planning.units(network, self.surgeries.budget))

    def _due_surgeries(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> list[tuple[int, Budget | None]]:
        return self.surgeries.due(Ledger.of(pl_module), self._key(trainer))

    def _network(self, pl_module: pl.LightningModule) -> nn.Module:
        return unwrap(get_module(pl_module, find_network(pl_module, self.target)))

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _key(self, trainer: pl.Trainer) -> str:
        alike = [sibling for sibling in siblings(trainer) if sibling._name == self._name]
        return f"{self._name}.{alike.index(self)}"


def siblings(trainer: pl.Trainer) -> list[PruneCallback]:
    """Return the pruning callbacks of a trainer, in their order."""
    return [c for c in trainer.callbacks if isinstance(c, PruneCallback)]  # type: ignore[attr-defined]
