"""Schedule of surgeries: all units at once, or a few units every few epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import lightning.pytorch as pl

from prunerecover.display.summary import call_text, changed_fields
from prunerecover.model.arguments import check_whole
from prunerecover.plan.budget import Budget

Unit = Literal["epoch", "step"]
GONE = {"alternate": " Kinds no longer take turns: give each kind a callback of its own, with another start."}


@dataclass(frozen=True)
class PruneSchedule:
    """Epochs of surgery, always at the start of the epoch.

    Args:
        start: First epoch (0: before any training).
        every: Epochs between surgeries; None removes everything at `start` (with `Quality`: 1).
        step: Number of units *per kind* removed by each surgery, for budgets in units; 1 if only `every` is given.
        times: Number of surgeries that divide a budget in a share of cost evenly; required with `every` for a share.
        by: Unit of `start` and `every`: "epoch", or "step" for optimizer steps, in a Trainer of transformers.

    Raises:
        ValueError: If a number is out of range or `step` and `every` do not come together.
        TypeError: If an argument is no whole number.

    >>> PruneSchedule(start=1, every=2, step=1).events({"attention": 2, "activation": 1})
    [(1, {'attention': 1, 'activation': 1}), (3, {'attention': 1})]
    """

    start: int = 0
    every: int | None = None
    step: int | None = None
    times: int | None = None
    by: Unit = "epoch"

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_whole("start", self.start, 0)
        if self.by not in get_args(Unit):
            raise ValueError(f"Expected argument by of a schedule to be 'epoch' or 'step', but got {self.by!r}.")
        for name in ("every", "step", "times"):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value, 1)
            if value and self.every is None:
                raise ValueError(f"Expected argument every with {name}: how many epochs lie between two surgeries.")

    def __repr__(self) -> str:
        """Return the call that makes the schedule."""
        return call_text("PruneSchedule", changed_fields(self))

    @property
    def is_progressive(self) -> bool:
        """Whether there may be several surgeries."""
        return self.every is not None

    def events(self, counts: Mapping[str, int]) -> list[tuple[int, dict[str, int]]]:
        """Return the epoch and the removed units of each surgery, given the total number of units per kind."""
        left = {kind: n for kind, n in counts.items() if n > 0}
        if self.every is None:
            return [(self.start, left)] if left else []
        events: list[tuple[int, dict[str, int]]] = []
        while left:
            taken = {kind: min(self.step or 1, n) for kind, n in left.items()}
            events.append((self.start + self.every * len(events), taken))
            left = {kind: n - taken[kind] for kind, n in left.items() if n > taken[kind]}
        return events

    def parts(self, budget: Budget) -> list[tuple[int, Budget]]:
        """Return the epoch of each surgery, and the total share of the first network's cost removed by then.

        >>> PruneSchedule(every=2, times=2).parts(Budget(macs=0.5))[0]
        (0, Budget(macs=0.25))
        """
        return [(self.start + (self.every or 0) * i, step) for i, step in enumerate(budget.in_steps(self.times or 1))]

    def check_budget(self, budget: Budget | None) -> None:
        """Raise ValueError if the budget and the schedule do not fit together."""
        if budget is None:
            if self.is_progressive:
                raise ValueError(
                    f"Expected a budget with schedule every={self.every}, which removes some each time, but got none: "
                    "a plan or a tolerance is applied at once."
                )
        elif budget.in_units:
            if self.times is not None:
                raise ValueError(
                    "Expected argument times with a budget in a share of cost (macs=, params=, ...), but got units. "
                    "Use step, which says how many of each kind every surgery removes."
                )
        elif self.is_progressive and (self.times is None or self.step is not None):
            raise ValueError(
                f"Expected argument times, and no step, in a schedule with every={self.every} and a budget in a share "
                "of cost: among how many surgeries it is divided. Or give a budget in units (remove= or ratio=)."
            )

    def check_steps(self) -> None:
        """Raise ValueError if the schedule of steps by quality has other arguments than `start` and `every`."""
        said = [name for name in changed_fields(self) if name not in ("start", "every")]
        if said:
            raise ValueError(
                f"Expected a schedule of start and every with Quality, but got {said[0]}={getattr(self, said[0])}. "
                "What goes each time is the callback's own argument step; how often shows in the fit."
            )

    def now(self, trainer: pl.Trainer) -> int:
        """Return the present epoch or optimizer step, in the schedule's unit."""
        return trainer.current_epoch if self.by == "epoch" else trainer.global_step

    def end(self, trainer: pl.Trainer) -> int | None:
        """Return the number of epochs or optimizer steps in the fit, in the schedule's unit.

        Raises:
            ValueError: If steps are counted in a Trainer of Lightning.
        """
        if self.by == "step" and isinstance(trainer, pl.Trainer):
            raise ValueError(
                f"Expected a schedule by epochs in a Trainer of Lightning, but got {self}. Leave by='step' out, and "
                "set limit_train_batches for shorter epochs."
            )
        return trainer.max_epochs if self.by == "epoch" else trainer.max_steps

    def check_fits(self, moments: Sequence[int], end: int | None) -> None:
        """Raise ValueError if a surgery would come at or after the end of the fit."""
        if moments and end is not None and end >= 0 and moments[-1] >= end:
            raise ValueError(
                f"Expected all surgeries before max_{self.by}s={end}, but the last of {len(moments)} comes at the "
                f"start of {self.by} {moments[-1]} (counted from 0). Start earlier (schedule), "
                "remove more per step, or train longer."
            )


def schedule_of(schedule: PruneSchedule | int | Mapping[str, Any] | None) -> PruneSchedule:
    """Return a schedule from a schedule, a first epoch, a mapping of arguments, or None for the default.

    Raises:
        ValueError: If the mapping has an unknown argument, or a number is out of range.
        TypeError: If the argument has another type.

    >>> schedule_of(3).start
    3
    """
    if isinstance(schedule, PruneSchedule):
        return schedule
    if isinstance(schedule, int) and not isinstance(schedule, bool):
        return PruneSchedule(start=schedule)
    if schedule is not None and not isinstance(schedule, Mapping):
        raise TypeError(
            "Expected argument schedule to be a PruneSchedule, the epoch to start at or a dict such as "
            f'{{"start": 1}}, but got {schedule!r}.'
        )
    names = [f.name for f in fields(PruneSchedule)]
    unknown = [name for name in schedule or {} if name not in names]
    if unknown:
        gone = GONE.get(unknown[0], "")
        raise ValueError(f"Expected schedule to have {', '.join(names)}, but got '{unknown[0]}'.{gone}")
    return PruneSchedule(**(schedule or {}))
