"""DepthPrune: remove blocks, attentions, MLPs or activations while a Trainer trains, tests or predicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn

from prunerecover.budget import Budget
from prunerecover.callbacks.announce import announce, warn_of_launcher
from prunerecover.callbacks.artifacts import artifact_folder, is_trial, save_merged
from prunerecover.callbacks.capture import capture_inputs
from prunerecover.callbacks.ledger import Ledger
from prunerecover.callbacks.ledger_callback import LedgerCallback
from prunerecover.callbacks.operate import operate
from prunerecover.callbacks.random_state import isolated
from prunerecover.callbacks.schedule import PruneSchedule, schedule_of
from prunerecover.callbacks.target import find_target
from prunerecover.callbacks.training_loss import training_loss
from prunerecover.depth import check_names, plan_depth
from prunerecover.fingerprint import tensors_hash, weights_hash
from prunerecover.importance import NEED_LOSS
from prunerecover.plan import Plan
from prunerecover.refit import refit_plan
from prunerecover.structure import get_module, unwrap
from prunerecover.surgery import check_source, check_tensors
from prunerecover.units import DEPTH_KINDS, find_units

SHARDED = (FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy)


class DepthPrune(LedgerCallback):
    """Prune the depth of a network inside any LightningModule, and keep training it.

    The surgery happens at the start of an epoch. Checkpoints hold what was done, so resuming, `test(ckpt_path="best")`
    and weights-only files work; optimizers, schedulers, averaged copies and DDP follow. Several of these on one module
    compose. In a second fit the same object goes on where it was; a new one starts its schedule anew.

    Args:
        budget: How much goes; exactly one of `budget`, `remove` and `plan`.
        remove: Units per kind, such as {"attention": 2, "activation": 6}.
        plan: A plan, or the path of one, instead of deciding here. Also applied before test, validate and predict when
            no checkpoint says otherwise. In a fit, its fitted tensors are fitted anew if the weights have changed
            since.
        target: Path of the network inside the LightningModule; default: the single supported one.
        importance: See `plan_depth`.
        loss: `loss(network, inputs) -> scalar` for importances that need one: call `network(*inputs.args,
            **inputs.kwargs)`; `inputs.batch` is what the training step was given, labels included. None: what the
            module's training step returns.
        replace: See `plan_depth`.
        search: See `plan_depth`.
        schedule: When; also as a dict of `PruneSchedule`'s arguments.
        calibration: Number of training samples to calibrate on.
        merge: "copy" saves a merged copy in `pruned/` beside the checkpoints at the end of the fit; "at_surgery" merges
            the live network; "never" does neither.
        ignore: Shell patterns of units that stay.
        seed: Of calibration samples and everything random in planning.

    Raises:
        ValueError: If the arguments do not fit together.
    """

    prunes = True

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
        search: str | None = None,
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
        if budget is not None and not isinstance(budget, Budget):
            raise TypeError(
                f"Expected argument budget to be a Budget, but got {type(budget).__name__}. Use remove={{...}}."
            )
        if schedule_of(schedule).is_progressive and remove is None and (budget is None or not budget.in_units):
            raise ValueError(
                "Expected a budget in units (remove= or ratio=) with schedule every=..., which removes some each time."
            )
        check_names(importance, replace, search)
        self.budget = Budget(remove=remove) if remove is not None else budget
        self.plan = Plan.load(plan) if isinstance(plan, str | Path) else plan
        self.schedule = schedule_of(schedule)
        self.target, self.calibration, self.merge, self.seed = target, calibration, merge, seed
        self.planning: dict[str, Any] = {
            "importance": importance,
            "loss": loss,
            "replace": replace,
            "search": search,
            "ignore": (ignore,) if isinstance(ignore, str) else tuple(ignore),
        }
        self._has_begun = False
        self._unfit: ValueError | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Install the ledger before any checkpoint is read."""
        super().setup(trainer, pl_module, stage)
        if isinstance(trainer.strategy, SHARDED):
            self._prune_before_sharding(trainer, pl_module)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Resume from the ledger of a checkpoint; refuse a schedule that does not fit."""
        super().on_fit_start(trainer, pl_module)
        self._begin(trainer, pl_module)
        left = self._left(trainer, pl_module)
        if not left and not Ledger.of(pl_module).made_by(self._key(trainer)):
            rank_zero_warn(f"{self._key(trainer)} will remove nothing: {self.budget} is less than one unit.")
        if not is_trial(trainer):
            self.schedule.check_fits([epoch for epoch, _ in left], trainer.max_epochs)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse fitted tensors of other weights under a sharded strategy, unless a checkpoint was read."""
        self._check_weights(pl_module)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Do the surgeries that are due."""
        for epoch, budget in self._left(trainer, pl_module):
            if epoch <= trainer.current_epoch or is_trial(trainer):  # a trial run tries the surgery, too
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
        if left and not is_trial(trainer):
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
            ledger.begun[me] = {"events": total, "units": self._units(pl_module), "asked": self._asked()}
        self._has_begun = True

    def _asked(self) -> dict[str, Any]:
        """What decides which surgeries come when, as plain data."""
        plan = None if self.plan is None else self.plan.result.tensors
        budget = None if self.budget is None else self.budget.to_dict()
        return {"budget": budget, "plan": plan, "schedule": dict(vars(self.schedule))}

    def _units(self, pl_module: pl.LightningModule) -> dict[str, int]:
        kinds = () if self.budget is None else self.budget.kinds(())
        network = unwrap(get_module(pl_module, find_target(pl_module, self.target)))
        units = find_units(network, kinds or DEPTH_KINDS)
        return {kind: sum(unit.kind == kind for unit in units) for kind in DEPTH_KINDS}

    def _left(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> list[tuple[int, Budget | None]]:
        """The surgeries of the schedule that are not done: epoch and budget; None stands for the given plan."""
        ledger, me = Ledger.of(pl_module), self._key(trainer)
        events: list[tuple[int, Budget | None]] = [(self.schedule.start, self.budget)]
        if self.budget is not None and self.budget.in_units:
            counts = self.budget.counts(ledger.begun[me]["units"])
            events = [(epoch, Budget(remove=part)) for epoch, part in self.schedule.events(counts)]
        return events[ledger.made_by(me) :]

    def _operate(self, trainer: pl.Trainer, pl_module: pl.LightningModule, budget: Budget | None) -> None:
        target, started = find_target(pl_module, self.target), time.perf_counter()
        with isolated():
            plan = self._decide(trainer, pl_module, target, budget)
            seconds = time.perf_counter() - started if budget is not None else None
            plan = trainer.strategy.broadcast(plan)  # decided once: ranks must not differ by a rounding error
            operate(trainer, pl_module, target, plan, merge=self.merge == "at_surgery")
        announce(trainer, Ledger.of(pl_module), self._key(trainer), target, plan, seconds)

    def _decide(self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str, budget: Budget | None) -> Plan:
        network = unwrap(get_module(pl_module, target))
        if budget is not None:
            batches = capture_inputs(trainer, pl_module, target, self.calibration, self.seed)
            planning = dict(self.planning)
            if planning["loss"] is None and planning["importance"] in NEED_LOSS:
                planning["loss"] = training_loss(trainer, pl_module)
            return plan_depth(network, budget, batches=batches, seed=self.seed, **planning)
        assert self.plan is not None
        if _fits_weights(self.plan, network):
            return self.plan
        rank_zero_info("prunerecover: the weights have changed since the plan was made; fitting its tensors anew.")
        batches = capture_inputs(trainer, pl_module, target, self.calibration, self.seed)
        return refit_plan(network, self.plan, batches, self.seed)

    def _prune_for_evaluation(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._check_weights(pl_module)
        ledger = Ledger.of(pl_module)
        if ledger.from_checkpoint:
            return
        if self.plan is None:
            if ledger.is_dense:
                rank_zero_warn(
                    "DepthPrune(remove=...) decides during a fit: without a checkpoint of a pruned model nothing is "
                    "pruned now. Pass ckpt_path=..., or DepthPrune(plan=...)."
                )
            return
        target = find_target(pl_module, self.target)
        found = tensors_hash(unwrap(get_module(pl_module, target)))
        if not ledger.is_dense and found != self.plan.source.tensors:  # pruned before: by this plan, or by a fit
            return
        self._begin(trainer, pl_module)
        operate(trainer, pl_module, target, self.plan, merge=self.merge == "at_surgery")
        announce(trainer, ledger, self._key(trainer), target, self.plan)

    def _prune_before_sharding(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Sharded strategies load weights into the wrapped model: the structure must be there before."""
        strategy = type(trainer.strategy).__name__
        if self.plan is None:
            raise ValueError(
                f"Expected DepthPrune(plan=...) with {strategy}, which shards the model before any surgery could "
                "happen. Make the plan beforehand: plan_depth(...).save('plan.json')."
            )
        if self.schedule.start > 0:
            raise ValueError(
                f"Expected schedule start=0 with {strategy}, which shards the model before the first epoch, but got "
                f"{self.schedule.start}. Train the dense model in a fit of its own, and prune in the next one."
            )
        self._begin(trainer, pl_module)
        ledger, me = Ledger.of(pl_module), self._key(trainer)
        if ledger.made_by(me) == 0:
            target = find_target(pl_module, self.target)
            network = unwrap(get_module(pl_module, target))
            check_source(network, self.plan)
            try:
                check_tensors(network, self.plan)
            except ValueError as error:  # no matter if weights are loaded from a checkpoint, which is not known yet
                self._unfit = error
            ledger.apply(pl_module, target, self.plan, structure_only=self._unfit is not None)
            announce(trainer, ledger, me, target, self.plan)

    def _check_weights(self, pl_module: pl.LightningModule) -> None:
        if self._unfit is not None and not Ledger.of(pl_module).from_checkpoint:
            raise self._unfit

    def _key(self, trainer: pl.Trainer) -> str:
        return f"DepthPrune.{self._mates(trainer).index(self)}"

    @staticmethod
    def _mates(trainer: pl.Trainer) -> list[DepthPrune]:
        return [c for c in trainer.callbacks if isinstance(c, DepthPrune)]  # type: ignore[attr-defined]


def _fits_weights(plan: Plan, network: nn.Module) -> bool:
    """Whether there is nothing to fit anew. Missing tensors are not fitted in silence: `operate` refuses."""
    complete = set(plan.needed_tensors) <= set(plan.tensors)
    return not plan.needed_tensors or not complete or plan.source.weights in (None, weights_hash(network))
