"""The state of a pruning callback: its budget or plan, its schedule, and the surgeries that are due.

Everything is counted off the ledger, so that a resumed run goes on where the file was written.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn

from prunerecover.callbacks.arguments import check_whole
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.ledger.callback import LedgerCallback
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.ledger.random_state import isolated
from prunerecover.callbacks.ledger.target import find_network
from prunerecover.callbacks.planning_progress import planning_progress
from prunerecover.callbacks.schedule import PruneSchedule, schedule_of
from prunerecover.callbacks.surgery.artifacts import is_dry_run
from prunerecover.checkpoint.ledger_record import ScheduleStart
from prunerecover.importance.measuring.names import name_of
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan


class ScheduledCallback(LedgerCallback):
    """Base: knows which surgeries a budget and a schedule, or a given plan, ask for, and which of them are done.

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
        TypeError: If the plan is neither a plan nor a path, or `calibration` no whole number.
    """

    prunes = True

    def __init__(
        self,
        budget: Budget | None,
        *,
        plan: str | Path | Plan | None,
        target: str | None,
        schedule: PruneSchedule | int | dict[str, Any] | None,
        calibration: int,
        merge: Literal["copy", "at_surgery", "never"],
        seed: int,
    ) -> None:
        if not isinstance(plan, str | Path | Plan | None):
            raise TypeError(f"Expected argument plan to be a Plan or the path of one, but got {type(plan).__name__}.")
        if merge not in ("copy", "at_surgery", "never"):
            raise ValueError(f"Expected argument merge to be 'copy', 'at_surgery' or 'never', but got '{merge}'.")
        check_whole("calibration", calibration, 1)
        self.budget = budget
        self.plan = plan if isinstance(plan, Plan) else None
        self._plan_file = Path(plan) if isinstance(plan, str | Path) else None
        self.schedule = schedule_of(schedule)
        self.schedule.check_budget(budget)
        self.target, self.calibration, self.merge, self.seed = target, calibration, merge, seed
        self._has_begun = False
        self._unread: OSError | ValueError | None = None  # why there is no plan from the plan's file

    @property
    @abstractmethod
    def planning(self) -> dict[str, Any]:
        """Further arguments of the planning function, by name."""

    def _arguments(self) -> dict[str, Any]:
        found = super()._arguments()
        if self.schedule == PruneSchedule():
            del found["schedule"]
        if self._plan_file is not None:
            found["plan"] = str(self._plan_file)
        return found

    def find(self, pl_module: pl.LightningModule) -> str:
        """Return the target, or the only network."""
        return find_network(pl_module, self.target)

    @abstractmethod
    def units(self, network: nn.Module) -> dict[str, int]:
        """Return how many units of each kind there are."""

    def check_feasible(self, surgery: Surgery, budget: Budget | None) -> None:
        """Raise what a surgery to come would raise whatever units score; called on every rank, random state isolated.

        Args:
            surgery: Network that will be pruned, and the first calibration batch.
            budget: Of all surgeries before those of others; None: there is none, or others come first.
        """

    def next_surgery(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> int | None:
        """Return the epoch of the next surgery; None: all are done.

        Args:
            trainer: That is fitting.
            pl_module: Its LightningModule.
        """
        left = self._due_surgeries(trainer, pl_module)
        return left[0][0] if left else None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Read the plan's file; whether it is needed, is known once a checkpoint is read."""
        super().setup(trainer, pl_module, stage)
        if self._plan_file is None or self.plan is not None:
            return
        try:
            self.plan, self._unread = Plan.load(self._plan_file), None
        except (OSError, ValueError) as error:
            self._unread = error

    def _check_plan_was_read(self) -> None:
        """Raise what went wrong with the plan's file, if anything did."""
        if self._unread is not None:
            raise self._unread

    def _say_plan_is_not_needed(self) -> None:
        if self._unread is not None:
            rank_zero_warn(f"The plan file is not needed, since the checkpoint holds what it did. {self._unread}")

    def _is_done(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> bool:
        """Whether the checkpoint that was read holds what a given plan did."""
        ledger = Ledger.of(pl_module)
        done = self.budget is None and bool(ledger.from_checkpoint and ledger.made_by(self._key(trainer)))
        if done:
            self._say_plan_is_not_needed()
        return done

    def _begin(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note what there was before the first surgery, unless this schedule is already under way."""
        ledger, me = Ledger.of(pl_module), self._key(trainer)
        missing = sorted(ledger.begun.keys() - {sibling._key(trainer) for sibling in self._siblings(trainer)})
        if ledger.from_checkpoint and missing and self._siblings(trainer)[0] is self:
            rank_zero_warn(
                f"The checkpoint is of a run that also had {', '.join(missing)}, which this Trainer has not: surgeries "
                "still to come will not happen. Pass the same callbacks in the same order."
            )
        under_way = me in ledger.begun and (self._has_begun or ledger.from_checkpoint)
        asked = self._signature()
        if under_way and self._unread is not None:
            asked["plan"] = ledger.begun[me].asked.get("plan")
        if under_way and ledger.begun[me].asked != asked:
            raise ValueError(
                f"Expected {me} with the arguments of the run that is resumed ({ledger.begun[me].asked}), but got "
                f"{asked}. Resume with the same callbacks in the same order, or start a new fit from the weights."
            )
        if not under_way:
            total = sum(event.by == me for event in ledger.events)
            ledger.begun[me] = ScheduleStart(events=total, units=self._available(pl_module), asked=asked)
        self._has_begun = True

    def _signature(self) -> dict[str, Any]:
        """What decides which surgeries come when, as plain data."""
        plan = None if self.plan is None else self.plan.result.tensors
        budget = None if self.budget is None else self.budget.to_dict()
        losses = {name for name, value in self.planning.items() if name == "loss" and callable(value)}
        how = {n: name_of(v) if callable(v) else str(v) for n, v in self.planning.items() if n not in losses}
        return {"budget": budget, "plan": plan, "schedule": dict(vars(self.schedule)), "planning": how}

    def _available(self, pl_module: pl.LightningModule) -> dict[str, int]:
        return self.units(unwrap(get_module(pl_module, self.find(pl_module))))

    def _due_surgeries(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> list[tuple[int, Budget | None]]:
        """The surgeries of the schedule that are not done: epoch, and what is to have gone in all; None: no budget."""
        ledger, me = Ledger.of(pl_module), self._key(trainer)
        events: list[tuple[int, Budget | None]]
        if self.budget is None:
            events = [(self.schedule.start, None)]
        elif self.budget.in_units:
            counts = self.budget.counts(ledger.begun[me].units)
            total, events = Counter[str](), []
            for epoch, part in self.schedule.events(counts):
                total.update(part)
                events.append((epoch, Budget(remove=dict(total))))
        else:
            events = list(self.schedule.parts(self.budget))
        return events[len(ledger.made_by(me)) :]

    def _check_ahead(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Have `check_feasible` look at all that is to go before another callback prunes, if a surgery is to come."""
        ledger = Ledger.of(pl_module)
        if self.plan is not None or ledger.from_checkpoint or is_dry_run(trainer) or ledger.made_by(self._key(trainer)):
            return
        left = self._due_surgeries(trainer, pl_module)
        if not left or left[-1][0] <= trainer.current_epoch:
            return
        target = self.find(pl_module)
        if target in ledger.adapters:
            return
        others = [c for c in self._siblings(trainer) if c is not self and c.find(pl_module) == target]
        theirs = [epoch for other in others for epoch, _ in other._due_surgeries(trainer, pl_module)]
        alone = [budget for epoch, budget in left if epoch < min(theirs, default=epoch + 1)]
        with isolated(), planning_progress(trainer, f"{self._name}: checking"):
            surgery = Surgery(trainer, pl_module, target, self.calibration, self.seed, most=1)
            self.check_feasible(surgery, alone[-1] if alone else None)

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _key(self, trainer: pl.Trainer) -> str:
        alike = [sibling for sibling in self._siblings(trainer) if sibling._name == self._name]
        return f"{self._name}.{alike.index(self)}"

    @staticmethod
    def _siblings(trainer: pl.Trainer) -> list[ScheduledCallback]:
        return [c for c in trainer.callbacks if isinstance(c, ScheduledCallback)]  # type: ignore[attr-defined]
