"""Surgeries that a pruning callback is asked for: by a budget and a schedule, or by a given plan.

Everything is counted off the ledger, so that a resumed run goes on where the file was written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from prunerecover.apply import refit
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.schedule import PruneSchedule
from prunerecover.checkpoint.ledger_record import ScheduleStart
from prunerecover.model.hashing import weights_hash
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.surgery.apply_edits import check_source
from prunerecover.surgery.saved_cost import budget_used


class GivenPlan:
    """A plan that was made elsewhere, or the path of one, which is read when a loop is set up.

    Args:
        plan: The plan, its path, or None.

    Raises:
        TypeError: If it is something else.
    """

    def __init__(self, plan: str | Path | Plan | None) -> None:
        if not isinstance(plan, str | Path | Plan | None):
            raise TypeError(f"Expected argument plan to be a Plan or the path of one, but got {type(plan).__name__}.")
        self.plan = plan if isinstance(plan, Plan) else None
        self.file = Path(plan) if isinstance(plan, str | Path) else None
        self.unread: OSError | ValueError | None = None  # why there is no plan from the file

    @property
    def said(self) -> str | Plan | None:
        """The plan as it was given, or the path of its file."""
        return self.plan if self.file is None else str(self.file)

    def read(self) -> None:
        """Read the file; whether it is needed, is known once a checkpoint is read."""
        if self.file is None or self.plan is not None:
            return
        try:
            self.plan, self.unread = Plan.load(self.file), None
        except (OSError, ValueError) as error:
            self.unread = error

    def check_was_read(self) -> None:
        """Raise what went wrong with the file, if anything did."""
        if self.unread is not None:
            raise self.unread

    def say_it_is_not_needed(self) -> None:
        """Warn of a file that could not be read, and need not be."""
        if self.unread is not None:
            rank_zero_warn(f"The plan file is not needed, since the checkpoint holds what it did. {self.unread}")

    def fitted(self, surgery: Surgery) -> Plan:
        """Return the plan for the weights that are there now; missing tensors are refused once it is applied.

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
        budget: How much goes in all; None: a plan or a tolerance says it.
        schedule: Epochs at which surgeries happen.

    Raises:
        ValueError: If the two do not go together.
    """

    def __init__(self, budget: Budget | None, schedule: PruneSchedule) -> None:
        schedule.check_budget(budget)
        self.budget, self.schedule = budget, schedule
        self._has_begun = False

    def begin(self, ledger: Ledger, me: str, asked: dict[str, Any], units: Callable[[], dict[str, int]]) -> None:
        """Note what there was before the first surgery, unless this schedule is already under way.

        Args:
            ledger: Ledger of the module.
            me: Key of the callback.
            asked: What decides which surgeries come when, as plain data.
            units: Returns how many units of each kind there are now.

        Raises:
            ValueError: If the run that is resumed had other arguments.
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
        """Return the surgeries that are not done: epoch or step, and what is to have gone in all; None: no budget.

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

    def taken(self, surgery: Surgery, plan: Plan) -> dict[str, float]:
        """Return what a plan takes of the budget, which surgeries to come need not take."""
        if self.budget is None or not self.schedule.is_progressive:
            return {}
        return budget_used(plan, self.budget, surgery.network, lambda: surgery.inputs[0], surgery.seed)

    def asked(self, plan: Plan | None, planning: Mapping[str, str]) -> dict[str, Any]:
        """Return what decides which surgeries come when, as plain data.

        Args:
            plan: The given plan.
            planning: The arguments of planning.
        """
        budget = None if self.budget is None else self.budget.to_dict()
        tensors = None if plan is None else plan.result.tensors
        schedule = dict(vars(self.schedule))
        if schedule["by"] == "epoch":  # runs of before there was a choice go on
            del schedule["by"]
        return {"budget": budget, "plan": tensors, "schedule": schedule, "planning": dict(planning)}
