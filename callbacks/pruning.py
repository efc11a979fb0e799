"""What DepthPrune and WidthPrune have in common: when surgeries are due, what resumes, and what evaluation finds.

A subclass says what its units are and how it decides. Everything else, the ledger, schedules, given plans, sharded
strategies and the merged copy, is here.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import nn

from prunerecover.budget import Budget
from prunerecover.callbacks.adapting import fold
from prunerecover.callbacks.announce import announce, warn_of_launcher
from prunerecover.callbacks.artifacts import artifact_folder, is_dry_run, save_merged
from prunerecover.callbacks.capture import CapturedInputs, capture_inputs
from prunerecover.callbacks.ledger import Ledger
from prunerecover.callbacks.ledger_callback import LedgerCallback
from prunerecover.callbacks.operate import merge_now, operate
from prunerecover.callbacks.random_state import isolated, seed_all
from prunerecover.callbacks.schedule import PruneSchedule, schedule_of
from prunerecover.cost import taken_by
from prunerecover.fingerprint import tensors_hash, weights_hash
from prunerecover.plan import Plan
from prunerecover.refit import refit_plan
from prunerecover.structure import get_module, unwrap
from prunerecover.surgery import check_source, check_tensors

SHARDED = (FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy)


class PruningCallback(LedgerCallback):
    """Base: removes units of a network inside any LightningModule by a budget and a schedule, or by a given plan.

    Args:
        budget: How much goes; exactly one of `budget` and `plan`.
        plan: A plan, or the path of one, which is read when a loop is set up.
        target: Path of the network inside the LightningModule.
        schedule: When.
        calibration: Number of training samples to calibrate on.
        merge: Of the merged copy at the end of a fit.
        seed: Of calibration samples and everything random in planning.

    Raises:
        ValueError: If the arguments do not fit together.
        TypeError: If the plan is neither a plan nor a path.
    """

    prunes = True
    planning: dict[str, Any]  # further arguments of the planning function

    def __init__(
        self,
        budget: Budget | None,
        *,
        plan: str | Path | Plan | None,
        target: str | None,
        schedule: PruneSchedule | dict[str, Any] | None,
        calibration: int,
        merge: Literal["copy", "at_surgery", "never"],
        seed: int,
    ) -> None:
        if not isinstance(plan, str | Path | Plan | None):
            raise TypeError(f"Expected argument plan to be a Plan or the path of one, but got {type(plan).__name__}.")
        if merge not in ("copy", "at_surgery", "never"):
            raise ValueError(f"Expected argument merge to be 'copy', 'at_surgery' or 'never', but got '{merge}'.")
        if calibration < 1:
            raise ValueError(f"Expected argument calibration to be at least 1 sample, but got {calibration}.")
        self.budget = budget
        self.plan = plan if isinstance(plan, Plan) else None
        self._plan_file = Path(plan) if isinstance(plan, str | Path) else None
        self.schedule = schedule_of(schedule)
        self.schedule.check_budget(budget)
        self.target, self.calibration, self.merge, self.seed = target, calibration, merge, seed
        self._has_begun = False
        self._unfit: ValueError | None = None
        self._sharded: nn.Module | None = None

    @abstractmethod
    def find(self, pl_module: pl.LightningModule) -> str:
        """Return the path of the network to prune."""

    @abstractmethod
    def units(self, network: nn.Module) -> dict[str, int]:
        """Return how many units of each kind there are."""

    @abstractmethod
    def decide(self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str, budget: Budget | None) -> Plan:
        """Return the plan for the network at `target` as it is now; called on every rank, random state isolated."""

    def keep(self, network: nn.Module, plan: Plan) -> nn.Module | None:
        """Return what `after_surgery` needs of the network as it is before the plan is applied; None: nothing."""
        return None

    def after_surgery(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str, plan: Plan, before: nn.Module | None
    ) -> None:
        """Called on every rank once the network at `target` has changed in a fit, random state isolated.

        Args:
            trainer: In the middle of the fit.
            pl_module: Its LightningModule.
            target: Path of the network.
            plan: What was done.
            before: What `keep` returned.
        """

    def after_surgery_without_data(self, network: nn.Module) -> None:
        """Called once a given plan has changed the network before test, validate or predict, or before it is sharded.

        Not if a checkpoint brings the weights.
        """

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Read the plan's file; install the ledger before any checkpoint is read.

        Raises:
            FileNotFoundError: If there is no plan file.
        """
        super().setup(trainer, pl_module, stage)
        if self._plan_file is not None and self.plan is None:
            self.plan = Plan.load(self._plan_file)
        if isinstance(trainer.strategy, SHARDED):
            self._prune_before_sharding(trainer, pl_module)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Resume from the ledger of a checkpoint; refuse a schedule that does not fit."""
        super().on_fit_start(trainer, pl_module)
        self._begin(trainer, pl_module)
        left = self._left(trainer, pl_module)
        if not left and not Ledger.of(pl_module).made_by(self._key(trainer)):
            rank_zero_warn(f"{self._key(trainer)} will remove nothing: {self.budget} is less than one unit.")
        if not is_dry_run(trainer):
            self.schedule.check_fits([epoch for epoch, _ in left], trainer.max_epochs)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse fitted tensors of other weights under a sharded strategy, unless a checkpoint was read."""
        self._after_sharding(pl_module)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Do the surgeries that are due."""
        for epoch, budget in self._left(trainer, pl_module):
            if epoch <= trainer.current_epoch or is_dry_run(trainer):  # a trial run tries the surgery, too
                self._operate(trainer, pl_module, budget)
        pl_module.log("removed_units", float(Ledger.of(pl_module).removed_units), prog_bar=True, batch_size=1)

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
        """Save a merged copy beside the checkpoints; warn of surgeries that never came."""
        left = self._left(trainer, pl_module)
        if left and not is_dry_run(trainer):
            rank_zero_warn(
                f"The fit ended before {len(left)} surgeries of {self._key(trainer)}, the first at the start of epoch "
                f"{left[0][0]}: the model is less pruned than asked for. Train longer or start earlier."
            )
        if self._mates(trainer)[0] is self:
            warn_of_launcher(trainer, Ledger.of(pl_module))
        copying = [mate for mate in self._mates(trainer) if mate.merge == "copy"]
        folder = artifact_folder(trainer)
        if copying[:1] != [self] or folder is None:
            return
        if isinstance(trainer.strategy, SHARDED):
            rank_zero_info("prunerecover: no rank has the whole model to merge; load_pruned opens the checkpoint.")
        elif trainer.is_global_zero:
            save_merged(pl_module, folder)

    def _begin(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note what there was before the first surgery, unless this schedule is already under way."""
        ledger, me = Ledger.of(pl_module), self._key(trainer)
        missing = sorted(ledger.begun.keys() - {mate._key(trainer) for mate in self._mates(trainer)})
        if ledger.from_checkpoint and missing and self._mates(trainer)[0] is self:
            rank_zero_warn(
                f"The checkpoint is of a run that also had {', '.join(missing)}, which this Trainer has not: surgeries "
                "still to come will not happen. Pass the same callbacks in the same order."
            )
        under_way = me in ledger.begun and (self._has_begun or ledger.from_checkpoint)
        if under_way and ledger.begun[me]["asked"] != self._asked():
            raise ValueError(
                f"Expected {me} with the arguments of the run that is resumed ({ledger.begun[me]['asked']}), but got "
                f"{self._asked()}. Resume with the same callbacks in the same order, or start a new fit from the "
                "weights."
            )
        if not under_way:
            total = sum(event["by"] == me for event in ledger.events)
            ledger.begun[me] = {"events": total, "units": self._available(pl_module), "asked": self._asked()}
        self._has_begun = True

    def _asked(self) -> dict[str, Any]:
        """What decides which surgeries come when, as plain data."""
        plan = None if self.plan is None else self.plan.result.tensors
        budget = None if self.budget is None else self.budget.to_dict()
        how = {name: str(value) for name, value in self.planning.items() if not callable(value)}
        return {"budget": budget, "plan": plan, "schedule": dict(vars(self.schedule)), "planning": how}

    def _available(self, pl_module: pl.LightningModule) -> dict[str, int]:
        return self.units(unwrap(get_module(pl_module, self.find(pl_module))))

    def _left(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> list[tuple[int, Budget | None]]:
        """The surgeries of the schedule that are not done: epoch, and what is to have gone in all; None: no budget."""
        ledger, me = Ledger.of(pl_module), self._key(trainer)
        events: list[tuple[int, Budget | None]]
        if self.budget is None:
            events = [(self.schedule.start, None)]
        elif self.budget.in_units:
            counts = self.budget.counts(ledger.begun[me]["units"])
            total, events = Counter[str](), []
            for epoch, part in self.schedule.events(counts):
                total.update(part)
                events.append((epoch, Budget(remove=dict(total))))
        else:
            events = list(self.schedule.parts(self.budget))
        return events[len(ledger.made_by(me)) :]

    def _operate(self, trainer: pl.Trainer, pl_module: pl.LightningModule, budget: Budget | None) -> None:
        target, started = self.find(pl_module), time.perf_counter()
        with isolated():
            seed_all(self.seed)  # a training step that scores may draw noise, and a resumed run has drawn less by now
            fold(trainer, pl_module, target)
            plan = self._decide(trainer, pl_module, target, budget)
            seconds = time.perf_counter() - started if self.plan is None else None
            plan = trainer.strategy.broadcast(plan)  # decided once: ranks must not differ by a rounding error
            taken = trainer.strategy.broadcast(self._taken(trainer, pl_module, target, plan))
            before = self.keep(unwrap(get_module(pl_module, target)), plan)
            operate(trainer, pl_module, target, plan)
            if plan.edits:
                self.after_surgery(trainer, pl_module, target, plan, before)
            if plan.edits and self.merge == "at_surgery":
                merge_now(trainer, pl_module, target)
        announce(trainer, Ledger.of(pl_module), self._key(trainer), target, plan, seconds, taken)

    def _taken(self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str, plan: Plan) -> dict[str, float]:
        """Return what a plan takes of the budget, which surgeries to come need not take."""
        if self.budget is None or not self.schedule.is_progressive:
            return {}

        def example() -> CapturedInputs:
            return capture_inputs(trainer, pl_module, target, self.calibration, self.seed)[0]

        return taken_by(plan, self.budget, unwrap(get_module(pl_module, target)), example, self.seed)

    def _decide(self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str, budget: Budget | None) -> Plan:
        if budget is not None:
            budget = budget.beyond(event["taken"] for event in Ledger.of(pl_module).made_by(self._key(trainer)))
            if budget is None:  # surgeries before have taken as much
                return Plan()
        if self.plan is None:
            return self.decide(trainer, pl_module, target, budget)
        network = unwrap(get_module(pl_module, target))
        if _fits_weights(self.plan, network):
            return self.plan
        rank_zero_info("prunerecover: the weights have changed since the plan was made; fitting its tensors anew.")
        batches = capture_inputs(trainer, pl_module, target, self.calibration, self.seed)
        return refit_plan(network, self.plan, batches, self.seed)

    def _prune_for_evaluation(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._after_sharding(pl_module)
        ledger = Ledger.of(pl_module)
        if ledger.from_checkpoint:
            return
        if self.plan is None:
            if ledger.is_dense:
                rank_zero_warn(
                    f"{self._name} with a budget decides during a fit: without a checkpoint of a pruned model nothing "
                    f"is pruned now. Pass ckpt_path=..., or {self._name}(plan=...)."
                )
            return
        target = self.find(pl_module)
        found = tensors_hash(unwrap(get_module(pl_module, target)))
        if not ledger.is_dense and found != self.plan.source.tensors:  # pruned before: by this plan, or by a fit
            return
        self._begin(trainer, pl_module)
        fold(trainer, pl_module, target)
        operate(trainer, pl_module, target, self.plan)
        if self.plan.edits and self.merge == "at_surgery":
            merge_now(trainer, pl_module, target)
        self.after_surgery_without_data(unwrap(get_module(pl_module, target)))
        announce(trainer, ledger, self._key(trainer), target, self.plan)

    def _prune_before_sharding(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Sharded strategies load weights into the wrapped model: the structure must be there before."""
        strategy = type(trainer.strategy).__name__
        if self.plan is None:
            raise ValueError(
                f"Expected {self._name}(plan=...) with {strategy}, which shards the model before any surgery could "
                "happen. Make the plan beforehand and save it: plan.save('plan.json')."
            )
        if self.schedule.start > 0:
            raise ValueError(
                f"Expected schedule start=0 with {strategy}, which shards the model before the first epoch, but got "
                f"{self.schedule.start}. Train the dense model in a fit of its own, and prune in the next one."
            )
        self._begin(trainer, pl_module)
        ledger, me = Ledger.of(pl_module), self._key(trainer)
        if not ledger.made_by(me):
            target = self.find(pl_module)
            network = unwrap(get_module(pl_module, target))
            check_source(network, self.plan)
            try:
                check_tensors(network, self.plan)
            except ValueError as error:  # no matter if weights are loaded from a checkpoint, which is not known yet
                self._unfit = error
            ledger.apply(pl_module, target, self.plan, structure_only=self._unfit is not None)
            self._sharded = network
            announce(trainer, ledger, me, target, self.plan)

    def _after_sharding(self, pl_module: pl.LightningModule) -> None:
        """Do what could not be done before: it was not known whether a checkpoint would be read."""
        network, self._sharded = self._sharded, None
        if Ledger.of(pl_module).from_checkpoint:
            return
        if self._unfit is not None:
            raise self._unfit
        if network is not None:
            self.after_surgery_without_data(network)

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _key(self, trainer: pl.Trainer) -> str:
        alike = [mate for mate in self._mates(trainer) if mate._name == self._name]
        return f"{self._name}.{alike.index(self)}"

    @staticmethod
    def _mates(trainer: pl.Trainer) -> list[PruningCallback]:
        return [c for c in trainer.callbacks if isinstance(c, PruningCallback)]  # type: ignore[attr-defined]


def _fits_weights(plan: Plan, network: nn.Module) -> bool:
    """Whether there is nothing to fit anew. Missing tensors are not fitted in silence: `operate` refuses."""
    complete = set(plan.needed_tensors) <= set(plan.tensors)
    return not plan.needed_tensors or not complete or plan.source.weights in (None, weights_hash(network))
