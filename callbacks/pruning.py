"""The part of a Trainer's run that DepthPrune and WidthPrune share: surgeries, evaluation, sharding, the merged copy.

A subclass says what its units are and how it decides; `scheduled` says what is due.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import nn

from prunerecover.apply import refit
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.ledger.random_state import isolated, seed_all
from prunerecover.callbacks.planning_progress import planning_progress
from prunerecover.callbacks.scheduled import ScheduledCallback
from prunerecover.callbacks.surgery.adapters import merge_adapters_in_trainer
from prunerecover.callbacks.surgery.announce import announce, warn_of_launcher
from prunerecover.callbacks.surgery.apply_in_trainer import apply_in_trainer, merge_in_trainer
from prunerecover.callbacks.surgery.artifacts import artifact_folder, is_dry_run, save_merged
from prunerecover.model.hashing import tensors_hash, weights_hash
from prunerecover.model.paths import get_module, unwrap
from prunerecover.model.untrained import said_of_untrained
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.surgery.apply_edits import check_source, check_tensors
from prunerecover.surgery.saved_cost import budget_used

SHARDED = (FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy)


class PruningCallback(ScheduledCallback):
    """Base: does the surgeries that are due in a fit, and applies a given plan before any other loop.

    Arguments and errors as of `ScheduledCallback`.
    """

    def __init__(self, budget: Budget | None, **arguments: Any) -> None:
        super().__init__(budget, **arguments)
        self._deferred_error: ValueError | None = None
        self._sharded: nn.Module | None = None

    @abstractmethod
    def decide(self, surgery: Surgery, budget: Budget | None) -> Plan:
        """Return the plan for the network as it is now; called on every rank, random state isolated.

        Args:
            surgery: Network and captured inputs.
            budget: How much of the network, as it is now, goes; None if the callback was given none.
        """

    def keep(self, network: nn.Module, plan: Plan) -> nn.Module | None:
        """Return what `after_surgery` needs of the network as it is before the plan is applied; None: nothing."""
        return None

    def after_surgery(self, surgery: Surgery, plan: Plan, before: nn.Module | None) -> str:
        """Change the network further, on every rank, once it has been pruned in a fit; return what was done, in words.

        The random state is isolated.

        Args:
            surgery: Network and captured inputs.
            plan: What was done.
            before: What `keep` returned.
        """
        return ""

    def after_surgery_without_data(self, network: nn.Module) -> None:
        """Called once a given plan has changed the network before test, validate or predict, or before it is sharded.

        Not if a checkpoint brings the weights.
        """

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Read the plan's file; install the ledger before any checkpoint is read.

        Raises:
            FileNotFoundError: If there is no plan file, and the fit is sharded.
            ValueError: If it cannot be read, and the fit is sharded.
        """
        super().setup(trainer, pl_module, stage)
        if isinstance(trainer.strategy, SHARDED):
            self._check_plan_was_read()
            self._prune_before_sharding(trainer, pl_module)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Resume from the ledger of a checkpoint; refuse a schedule that does not fit.

        Raises:
            FileNotFoundError: If there is no plan file, and no checkpoint holds what the plan did.
            ValueError: If the plan's file cannot be read, and no checkpoint holds what it did.
        """
        super().on_fit_start(trainer, pl_module)
        if not self._is_done(trainer, pl_module):
            self._check_plan_was_read()
        self._begin(trainer, pl_module)
        left = self._due_surgeries(trainer, pl_module)
        if not left and not Ledger.of(pl_module).made_by(self._key(trainer)):
            rank_zero_warn(f"{self._key(trainer)} will remove nothing: {self.budget} is less than one unit.")
        if is_dry_run(trainer):
            return
        self.schedule.check_fits([epoch for epoch, _ in left], trainer.max_epochs)
        if left and left[0][0] == 0 and Ledger.of(pl_module).from_checkpoint is None:
            self._warn_of_untrained(trainer, pl_module)

    def _warn_of_untrained(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        network = unwrap(get_module(pl_module, self.find(pl_module)))
        instead = "train before: schedule=10 prunes at the start of epoch 10."
        if warning := said_of_untrained(network, f"{self._key(trainer)} prunes", instead):
            rank_zero_warn(warning)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse what no surgery to come could do, and fitted tensors of other weights under a sharded strategy."""
        super().on_train_start(trainer, pl_module)
        self._after_sharding(pl_module)
        self._check_ahead(trainer, pl_module)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Do the surgeries that are due."""
        super().on_train_epoch_start(trainer, pl_module)
        for epoch, budget in self._due_surgeries(trainer, pl_module):
            if epoch <= trainer.current_epoch or is_dry_run(trainer):  # a trial run tries the surgery, too
                self._operate(trainer, pl_module, budget)
        removed = float(Ledger.of(pl_module).removed_units)
        # The same on all ranks: with both arguments Lightning neither warns that it is of one, nor has ranks wait.
        pl_module.log("removed_units", removed, prog_bar=True, batch_size=1, sync_dist=True, rank_zero_only=True)

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
        left = self._due_surgeries(trainer, pl_module)
        if left and not is_dry_run(trainer):
            rank_zero_warn(
                f"The fit ended before {len(left)} surgeries of {self._key(trainer)}, the first at the start of epoch "
                f"{left[0][0]}: the model is less pruned than asked for. Train longer or start earlier."
            )
        if self._siblings(trainer)[0] is self:
            warn_of_launcher(trainer, Ledger.of(pl_module))
        copying = [sibling for sibling in self._siblings(trainer) if sibling.merge == "copy"]
        folder = artifact_folder(trainer)
        if copying[:1] != [self] or folder is None:
            return
        if isinstance(trainer.strategy, SHARDED):
            rank_zero_info("prunerecover: no rank has the whole model to merge; load_pruned opens the checkpoint.")
        elif trainer.is_global_zero:
            save_merged(pl_module, folder)

    def _operate(self, trainer: pl.Trainer, pl_module: pl.LightningModule, budget: Budget | None) -> None:
        target, started = self.find(pl_module), time.perf_counter()
        surgery = Surgery(trainer, pl_module, target, self.calibration, self.seed)
        with isolated(), planning_progress(trainer, f"{self._name}: planning"):
            seed_all(self.seed)  # a training step that scores may draw noise, and a resumed run has drawn less by now
            merge_adapters_in_trainer(trainer, pl_module, target)
            plan = self._decide(surgery, budget)
            seconds = time.perf_counter() - started if self.plan is None else None
            plan = trainer.strategy.broadcast(plan)  # decided once: ranks must not differ by a rounding error
            taken = trainer.strategy.broadcast(self._taken(surgery, plan))
            before = self.keep(surgery.dense, plan)
            apply_in_trainer(trainer, pl_module, target, plan)
            kept = self.after_surgery(surgery, plan, before) if plan.edits else None
            if plan.edits and self.merge == "at_surgery":
                merge_in_trainer(trainer, pl_module, target)
        announce(trainer, Ledger.of(pl_module), self._key(trainer), target, plan, seconds, taken, kept or "")

    def _taken(self, surgery: Surgery, plan: Plan) -> dict[str, float]:
        """Return what a plan takes of the budget, which surgeries to come need not take."""
        if self.budget is None or not self.schedule.is_progressive:
            return {}
        return budget_used(plan, self.budget, surgery.network, lambda: surgery.inputs[0], self.seed)

    def _decide(self, surgery: Surgery, budget: Budget | None) -> Plan:
        if budget is not None:
            events = Ledger.of(surgery.module).made_by(self._key(surgery.trainer))
            budget = budget.remaining(event.taken for event in events)
            if budget is None:  # surgeries before have taken as much
                return Plan()
        if self.plan is None:
            return self.decide(surgery, budget)
        if _fits_weights(self.plan, surgery.network):
            return self.plan
        rank_zero_info("prunerecover: the weights have changed since the plan was made; fitting its tensors anew.")
        check_source(surgery.network, self.plan)
        return refit(surgery.session(), self.plan)

    def _prune_for_evaluation(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._after_sharding(pl_module)
        ledger = Ledger.of(pl_module)
        if ledger.from_checkpoint:
            self._say_plan_is_not_needed()
            return
        self._check_plan_was_read()
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
        merge_adapters_in_trainer(trainer, pl_module, target)
        apply_in_trainer(trainer, pl_module, target, self.plan)
        if self.plan.edits and self.merge == "at_surgery":
            merge_in_trainer(trainer, pl_module, target)
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
                self._deferred_error = error
            ledger.apply(pl_module, target, self.plan, structure_only=self._deferred_error is not None)
            self._sharded = network
            announce(trainer, ledger, me, target, self.plan)

    def _after_sharding(self, pl_module: pl.LightningModule) -> None:
        """Do what could not be done before: it was not known whether a checkpoint would be read."""
        network, self._sharded = self._sharded, None
        if Ledger.of(pl_module).from_checkpoint:
            return
        if self._deferred_error is not None:
            raise self._deferred_error
        if network is not None:
            self.after_surgery_without_data(network)


def _fits_weights(plan: Plan, network: nn.Module) -> bool:
    """Whether there is nothing to fit anew. Missing tensors are not fitted in silence: `apply_in_trainer` refuses."""
    complete = set(plan.needed_tensors) <= set(plan.tensors)
    return not plan.needed_tensors or not complete or plan.source.weights in (None, weights_hash(network))
