"""Surgeries in steps until a metric of validation falls: each step is recovered from, judged, and kept or undone.

A step is judged at the start of an epoch, as surgery happens there, by the last validation, or by a validation run at
that time. After an undone step, the fit continues with the last kept network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.logs.history import logged_now
from prunerecover.callbacks.schedules.schedule import PruneSchedule
from prunerecover.callbacks.schedules.scheduled import ScheduledSurgeries
from prunerecover.callbacks.schedules.snapshot import Snapshot
from prunerecover.callbacks.schedules.steps import begun, cost_left, step_of, total_of
from prunerecover.callbacks.schedules.validation import validate
from prunerecover.callbacks.surgery.artifacts import artifact_folder, save_as_best, save_plan
from prunerecover.checkpoint.ledger_record import QualityStep, QualityTrail
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.quality import Quality

KEY = "prunerecover_kept"
FELL, ALL_WENT = "the metric fell", "as much as may go has gone"
NO_EPOCHS = "no epochs are left to recover from another step"


class QualitySurgeries(ScheduledSurgeries):
    """Steps of one callback.

    Args:
        quality: Metric to keep, with the allowed drop.
        step: Amount to remove in each step; see `step_of`.
        schedule: Epoch of the first step, and epochs between two steps.
        target: Function that returns the path of the network in a module.

    Raises:
        ValueError: If the arguments do not fit together.
        TypeError: If `step` is neither a number nor a budget.

    Attributes:
        kept: Snapshot of the last module of sufficient quality; None: the fit has made no step.
    """

    budget: Budget
    shared = True

    def __init__(
        self,
        quality: Quality,
        step: float | Budget | None,
        schedule: PruneSchedule,
        target: Callable[[pl.LightningModule], str],
    ) -> None:
        self.quality, self._target = quality, target
        super().__init__(step_of(step, quality), schedule)
        self._noted: tuple[int, dict[str, float]] | None = None
        self._refused, self._is_settled = "", False
        self.kept: Snapshot | None = None

    def _check(self) -> None:
        self.schedule.check_steps()

    @property
    def every(self) -> int:
        """Epochs of recovery after a step."""
        return self.schedule.every or 1

    def asked(self, plan: Plan | None, planning: Mapping[str, str]) -> dict[str, Any]:
        """Return the arguments with influence on the surgeries and their times, as plain data."""
        return {**super().asked(plan, planning), "quality": self.quality.to_dict()}

    def begin(self, ledger: Ledger, me: str, asked: dict[str, Any], units: Callable[[], dict[str, int]]) -> None:
        """Note the state before the first step, unless the schedule is already under way."""
        before = ledger.begun.get(me)
        super().begin(ledger, me, asked, units)
        if ledger.begun[me] is not before:
            ledger.quality.pop(me, None)

    def due(self, ledger: Ledger, me: str) -> list[tuple[int, Budget | None]]:
        """Return the next step if a step may follow: the epoch, and the total amount to remove by then."""
        trail = ledger.quality.get(me)
        steps = () if trail is None else trail.steps
        total = total_of(self.budget, len(steps) + 1, self.quality)
        if total is None or (trail is not None and trail.ended):
            return []
        return [(steps[-1].epoch + self.every if steps else self.schedule.start, total)]

    def end_fit(self, trainer: pl.Trainer, module: pl.LightningModule, me: str) -> None:
        """Settle a fit without any training left; steps left undone by a finished fit need no warning."""
        self.settle(trainer, module, me)

    def check_fit(self, trainer: pl.Trainer, module: pl.LightningModule, me: str) -> None:
        """Raise ValueError if a fit has no validation, ends before a first judgement, or has two Quality callbacks."""
        if not trainer.enable_validation:
            raise ValueError(
                f"Expected a fit with validation for {self.quality}, but {type(module).__name__} has no "
                "validation_step, there are no validation data, or limit_val_batches=0. Log the metric in "
                "validation_step, and pass validation data to fit."
            )
        alike = [c for c in trainer.callbacks if isinstance(getattr(c, "surgeries", None), QualitySurgeries)]  # type: ignore[attr-defined]
        if len(alike) > 1:
            raise ValueError(
                f"Expected one callback that prunes until a metric falls, but got {len(alike)}: a step that is taken "
                "back takes the other's with it. Prune(Quality(...)) prunes depth and width together."
            )
        if me not in Ledger.of(module).quality:
            self.schedule.check_fits([self.schedule.start + self.every], self.schedule.end(trainer))

    def begin_fit(self) -> None:
        """Forget the state of an earlier fit."""
        self.kept, self._noted, self._is_settled = None, None, False

    def note(self, trainer: pl.Trainer) -> None:
        """Note the metrics logged by a validation within a fit.

        Raises:
            ValueError: If the metric is not logged.
        """
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._noted = (trainer.global_step, logged_now(trainer._results))
            self._read(self._noted[1])

    def judge(self, trainer: pl.Trainer, module: pl.LightningModule, me: str) -> None:
        """Keep the last step, or undo the step; decide whether another step may follow."""
        ledger = Ledger.of(module)
        trail = ledger.quality.get(me)
        if trail is None or not trail.steps or trainer.current_epoch < trail.steps[-1].epoch + self.every:
            return
        if trail.steps[-1].kept is None:
            trail = self._judged(trainer, module, me, trail)
        if trail.ended in ("", NO_EPOCHS):
            last = trainer.max_epochs if trainer.max_epochs not in (None, -1) else math.inf
            ended = "" if trainer.current_epoch + self.every < last else NO_EPOCHS
            left = total_of(self.budget, len(trail.steps) + 1, self.quality)
            ledger.quality[me] = trail.model_copy(update={"ended": ALL_WENT if left is None else ended})

    def operate(self, trainer: pl.Trainer, module: pl.LightningModule, me: str, do: Callable[[], None]) -> None:
        """Do a step; the network is validated before the first step, and after each step.

        Args:
            trainer: Trainer at the start of an epoch.
            module: LightningModule of the fit.
            me: Key of the callback.
            do: Function that does the surgery; without a new event in the ledger, no unit is left to remove.

        Raises:
            ValueError: If the metric is not logged, is no number, or misses the quality before the first step.
        """
        ledger = Ledger.of(module)
        if me not in ledger.quality:
            ledger.quality[me] = begun(self.quality, self._target(module), self._value(trainer, module))
            self.kept = Snapshot.of(trainer, module, self._target(module))
        trail, done = ledger.quality[me], len(ledger.events)
        total = total_of(self.budget, len(trail.steps) + 1, self.quality)
        self._refused = ""
        do()
        if len(ledger.events) == done:
            self._go_back(trainer, module)
            ended = f"nothing more can go{f': {self._refused}' if self._refused else ''}"
            ledger.quality[me] = trail.model_copy(update={"ended": ended})
            rank_zero_info(f"prunerecover: {ended}")
            return
        assert total is not None, "it was due"
        event, self._noted = ledger.events[-1], None
        (asked,) = total.to_dict().values() if total.in_units else (total.shares,)
        step = QualityStep(
            epoch=trainer.current_epoch,
            asked=asked,
            left=cost_left((e.taken for e in ledger.made_by(me)), self.budget),
            params=event.params,
            macs=event.macs,
            after_surgery=_number(self._value(trainer, module)),
        )
        ledger.quality[me] = trail.model_copy(update={"steps": (*trail.steps, step)})

    def decided(self, decide: Callable[[], Plan], ledger: Ledger, me: str) -> Plan:
        """Return the plan of `decide()`; after the first step, an empty plan where `decide()` raises ValueError."""
        try:
            return decide()
        except ValueError as error:
            if not ledger.quality[me].steps:
                raise
            self._refused = str(error).partition(". ")[0]
            return Plan()

    def settle(self, trainer: pl.Trainer, module: pl.LightningModule, me: str) -> None:
        """Check the quality at the end of training; if missed, go back to the last kept network."""
        trail = Ledger.of(module).quality.get(me)
        if trail is None or not trail.steps or self.kept is None or self._is_settled:
            return
        self._is_settled = True
        if trail.steps[-1].kept is None:
            back = not self._judged(trainer, module, me, trail).steps[-1].kept
        else:
            value = self._value(trainer, module)
            back = not trainer.strategy.broadcast(self.quality.holds(value, trail.dense))
            if back:
                rank_zero_warn(
                    f"At the end of the fit {trail.monitor} is {value:.5g}, and {trail.worst:.5g} was asked for: the "
                    "network is again the one that held it last. Lower the learning rate, or train longer."
                )
                self._go_back(trainer, module)
        if back:
            save_as_best(trainer)

    def save(self, checkpoint: dict[str, Any], me: str) -> None:
        """Write the last kept network into a checkpoint."""
        if self.kept is not None:
            checkpoint.setdefault(KEY, {})[me] = self.kept.to_dict()

    def load(self, checkpoint: Mapping[str, Any], me: str) -> None:
        """Read the network written by `save`."""
        found = checkpoint.get(KEY, {}).get(me)
        self.kept = None if found is None else Snapshot.from_dict(found)

    def _read(self, logged: Mapping[str, float]) -> float:
        name = self.quality.monitor
        if name not in logged:
            raise ValueError(
                f"Expected '{name}' among what validation logs, but that is {', '.join(logged) or 'nothing'}. Log it "
                f"in validation_step, self.log('{name}', ...), or name another one in Quality."
            )
        return logged[name]

    def _value(self, trainer: pl.Trainer, module: pl.LightningModule) -> float:
        """Return the metric of the network in its present state, the mean over ranks."""
        if self._noted is None or self._noted[0] != trainer.global_step:
            self._noted = (trainer.global_step, validate(trainer, module))
        own = torch.tensor(self._read(self._noted[1]), device=module.device)
        return float(trainer.strategy.reduce(own, reduce_op="mean"))

    def _judged(self, trainer: pl.Trainer, module: pl.LightningModule, me: str, trail: QualityTrail) -> QualityTrail:
        ledger, value = Ledger.of(module), self._value(trainer, module)
        kept = trainer.strategy.broadcast(self.quality.holds(value, trail.dense))
        trail = trail.with_last(recovered=_number(value), kept=kept)
        ledger.quality[me] = trail if kept else trail.model_copy(update={"ended": FELL})
        rank_zero_info(
            f"prunerecover: epoch {trainer.current_epoch}, {trail.monitor} {value:.5g} (dense {trail.dense:.5g}, asked "
            f"{trail.worst:.5g}): step {len(trail.steps)} is {'kept' if kept else 'taken back, and is the last one'}."
        )
        if kept:
            self.kept = Snapshot.of(trainer, module, self._target(module))
        else:
            self._go_back(trainer, module)
        return ledger.quality[me]

    def _go_back(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self.kept is None:
            raise RuntimeError(
                "Expected the network of before the last step in the checkpoint that the fit was resumed from, but it "
                "holds none. Resume from a file that Lightning has saved whole, without save_weights_only."
            )
        self.kept.restore(trainer, module)
        self._noted, folder, target = None, artifact_folder(trainer), self._target(module)
        if folder is not None and trainer.is_global_zero:
            save_plan(folder, Ledger.of(module), target)


def surgeries_of(
    budget: Budget | Quality | None,
    step: float | Budget | None,
    schedule: PruneSchedule,
    target: Callable[[pl.LightningModule], str],
) -> ScheduledSurgeries:
    """Return the surgeries for a budget, or for a quality in steps.

    Raises:
        ValueError: If the arguments do not fit together.
        TypeError: If `step` is neither a number nor a budget.
    """
    if isinstance(budget, Quality):
        return QualitySurgeries(budget, step, schedule, target)
    if step is not None:
        raise ValueError(
            f"Expected argument step with a quality to keep, Quality('val_acc', drop=0.01), but got it with {budget}. "
            "A budget goes in several surgeries by schedule=PruneSchedule(every=1, times=3)."
        )
    return ScheduledSurgeries(budget, schedule)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
