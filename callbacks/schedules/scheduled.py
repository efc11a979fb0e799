"""Surgeries of a pruning callback: by a budget and a schedule, or by a given plan.

All progress is counted from the ledger: a resumed run continues at the state of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import nn

from prunerecover.apply import refit
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.schedules.schedule import PruneSchedule
from prunerecover.callbacks.surgery.artifacts import is_dry_run
from prunerecover.checkpoint.ledger_record import ScheduleStart
from prunerecover.model.hashing import tensors_hash, weights_hash
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.surgery.apply_edits import check_source
from prunerecover.surgery.saved_cost import budget_used


class GivenPlan:
    """Plan made elsewhere, or the path of a plan file, read when a loop is set up.

    Args:
        plan: Plan, path of a plan file, or None.

    Raises:
        TypeError: If `plan` has another type.
    """

    def __init__(self, plan: str | Path | Plan | None) -> None:
        if not isinstance(plan, str | Path | Plan | None):
            raise TypeError(f"Expected argument plan to be a Plan or the path of one, but got {type(plan).__name__}.")
        self.plan = plan if isinstance(plan, Plan) else None
        self.file = Path(plan) if isinstance(plan, str | Path) else None
        self.unread: OSError | ValueError | None = None  # error from reading the file

    @property
    def said(self) -> str | Plan | None:
        """The plan as given, or the path of its file."""
        return self.plan if self.file is None else str(self.file)

    def read(self) -> None:
        """Read the file; only a checkpoint, read later, tells whether the file is needed."""
        if self.file is None or self.plan is not None:
            return
        try:
            self.plan, self.unread = Plan.load(self.file), None
        except (OSError, ValueError) as error:
            self.unread = error

    def check_was_read(self, unless: bool = False) -> None:
        """Raise the error from reading the file, if any; warn instead if the file is not needed.

        Args:
            unless: Whether a checkpoint holds the surgery of the plan.
        """
        if unless:
            self.say_it_is_not_needed()
        elif self.unread is not None:
            raise self.unread

    def say_it_is_not_needed(self) -> None:
        """Warn about an unreadable file that is not needed."""
        if self.unread is not None:
            rank_zero_warn(f"The plan file is not needed, since the checkpoint holds what it did. {self.unread}")

    def before_evaluation(self, ledger: Ledger, network: Callable[[], nn.Module], name: str) -> Plan | None:
        """Return the plan if it must be applied before evaluation, else None; warn if the network stays dense.

        Args:
            ledger: Ledger of the module.
            network: Function that returns the network.
            name: Class of the callback.
        """
        if ledger.from_checkpoint:
            self.say_it_is_not_needed()
            return None
        self.check_was_read()
        if self.plan is None:
            if ledger.is_dense:
                rank_zero_warn(
                    f"{name} with a budget decides during a fit: without a checkpoint of a pruned model nothing is "
                    f"pruned now. Pass ckpt_path=..., or {name}(plan=...)."
                )
            return None
        if not ledger.is_dense and tensors_hash(network()) != self.plan.source.tensors:  # by this plan, or by a fit
            return None
        return self.plan

    def fitted(self, surgery: Surgery) -> Plan:
        """Return the plan for the present weights; missing tensors are refused later, on application.

        Args:
            surgery: Network and captured inputs.
        """
        assert self.plan is not None, "it was read"
        complete = set(self.plan.needed_tensors) <= set(self.plan.tensors)
        fits = self.plan.source.weights in (None, weights_hash(surgery.network))
        if not self.plan.needed_tensors or not complete or fits:
            return self.plan
        rank_zero_info("prunerecover: the weights have changed since the plan was made; fitting its tensors anew.")
        check_source(surgery.network, self.plan)
        return refit(surgery.session(), self.plan)


class ScheduledSurgeries:
    """Surgeries of one callback.

    Args:
        budget: Amount to remove in all, or in each step until a metric falls; None: set by a plan or a tolerance.
        schedule: Epochs of the surgeries.

    Raises:
        ValueError: If budget and schedule do not fit together.

    Attributes:
        shared: Whether surgeries share a budget, whatever the schedule.
    """

    shared: ClassVar[bool] = False

    def __init__(self, budget: Budget | None, schedule: PruneSchedule) -> None:
        self.budget, self.schedule = budget, schedule
        self._check()
        self._has_begun = False

    def _check(self) -> None:
        self.schedule.check_budget(self.budget)

    def begin(self, ledger: Ledger, me: str, asked: dict[str, Any], units: Callable[[], dict[str, int]]) -> None:
        """Note the state before the first surgery, unless the schedule is already under way.

        Args:
            ledger: Ledger of the module.
            me: Key of the callback.
            asked: Arguments with influence on the surgeries and their times, as plain data.
            units: Function that returns the present number of units of each kind.

        Raises:
            ValueError: If the resumed run had other arguments.
        """
        under_way = me in ledger.begun and (self._has_begun or ledger.from_checkpoint)
        if under_way and ledger.begun[me].asked != asked:
            raise ValueError(
                f"Expected {me} with the arguments of the run that is resumed ({ledger.begun[me].asked}), but got "
                f"{asked}. Resume with the same callbacks in the same order, or start a new fit from the weights."
            )
        if not under_way:
            total = sum(event.by == me for event in ledger.events)
            ledger.begun[me] = ScheduleStart(events=total, units=units(), asked=asked)
        self._has_begun = True

    def due(self, ledger: Ledger, me: str) -> list[tuple[int, Budget | None]]:
        """Return the surgeries left: epoch or step, and the total amount to remove by then; None: no budget.

        Args:
            ledger: Ledger of the module, in which the schedule has begun.
            me: Key of the callback.
        """
        events: list[tuple[int, Budget | None]]
        if self.budget is None:
            events = [(self.schedule.start, None)]
        elif self.budget.in_units:
            total, events = Counter[str](), []
            for epoch, part in self.schedule.events(self.budget.counts(ledger.begun[me].units)):
                total.update(part)
                events.append((epoch, Budget(remove=dict(total))))
        else:
            events = list(self.schedule.parts(self.budget))
        return events[len(ledger.made_by(me)) :]

    def check_fit(self, trainer: pl.Trainer, module: pl.LightningModule, me: str) -> None:
        """Raise ValueError if a remaining surgery would come at or after the end of a fit."""
        self.schedule.check_fits([moment for moment, _ in self.due(Ledger.of(module), me)], self.schedule.end(trainer))

    def end_fit(self, trainer: pl.Trainer, module: pl.LightningModule, me: str) -> None:
        """Warn about surgeries left undone by a finished fit."""
        left = self.due(Ledger.of(module), me)
        if left and not is_dry_run(trainer):
            rank_zero_warn(
                f"The fit ended before {len(left)} surgeries of {me}, the first at the start of {self.schedule.by} "
                f"{left[0][0]}: the model is less pruned than asked for. Train longer or start earlier."
            )

    def begin_fit(self) -> None:
        """Begin a fit, before its checkpoint is read."""

    def note(self, trainer: pl.Trainer) -> None:
        """Note the metrics logged by a validation within a fit."""

    def judge(self, trainer: pl.Trainer, module: pl.LightningModule, me: str) -> None:
        """Judge the earlier surgeries at the start of an epoch."""

    def operate(self, trainer: pl.Trainer, module: pl.LightningModule, me: str, do: Callable[[], None]) -> None:
        """Do a surgery that is due: `do()`."""
        do()

    def decided(self, decide: Callable[[], Plan], ledger: Ledger, me: str) -> Plan:
        """Return the plan of `decide()`."""
        return decide()

    def settle(self, trainer: pl.Trainer, module: pl.LightningModule, me: str) -> None:
        """Check at the end of training that the network meets the request."""

    def save(self, checkpoint: dict[str, Any], me: str) -> None:
        """Write state outside the ledger into a checkpoint."""

    def load(self, checkpoint: Mapping[str, Any], me: str) -> None:
        """Read the state written by `save`."""

    def taken(self, surgery: Surgery, plan: Plan) -> dict[str, float]:
        """Return the part of the budget used by a plan; later surgeries need not remove the part again."""
        if self.budget is None or not (self.shared or self.schedule.is_progressive):
            return {}
        return budget_used(plan, self.budget, surgery.network, lambda: surgery.inputs[0], surgery.seed)

    def asked(self, plan: Plan | None, planning: Mapping[str, str]) -> dict[str, Any]:
        """Return the arguments with influence on the surgeries and their times, as plain data.

        Args:
            plan: Given plan.
            planning: Arguments of planning.
        """
        budget = None if self.budget is None else self.budget.to_dict()
        tensors = None if plan is None else plan.result.tensors
        schedule = {**vars(self.schedule), "alternate": False}  # which runs from before its removal hold
        if schedule["by"] == "epoch":  # runs from before this argument can be resumed
            del schedule["by"]
        return {"budget": budget, "plan": tensors, "schedule": schedule, "planning": dict(planning)}
