"""Metrics of the validations seen by PruneReport, with the state of pruning in each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl

from prunerecover.checkpoint.ledger_record import SurgeryEvent
from prunerecover.report.logged import LoggedPoint

OF_CALLBACKS = ("removed_units", "recovery_factor")


@dataclass
class LoggedHistory:
    """Metrics over the epochs of all fits seen by one callback.

    Attributes:
        points: Points in order, by name of the metric.
        validated: Names of the metrics logged in validation.
        dense: Values of a validation before the fit.
        fit: Number of the present fit; a resumed fit keeps its number.
        begun: Number of surgeries before the fit began.
        resumed: Whether a checkpoint's state was read since the fit was set up.
    """

    points: dict[str, list[LoggedPoint]] = field(default_factory=dict)
    validated: list[str] = field(default_factory=list)
    dense: dict[str, float] = field(default_factory=dict)
    fit: int = 0
    begun: int = 0
    resumed: bool = False

    def begin(self, events: Sequence[SurgeryEvent]) -> None:
        """Begin a fit, or continue a resumed fit; `events` are the network's surgeries so far."""
        if not self.resumed:
            self.fit, self.begun = self.fit + 1, len(events)
        for points in self.points.values():  # earlier versions noted epochs alone
            for i, point in enumerate(points):
                if point.surgeries is None:
                    done = sum(event.epoch <= point.epoch for event in events)
                    points[i] = point._replace(surgeries=done, own=done)

    def add(self, values: Mapping[str, float], epoch: int, surgeries: int) -> None:
        """Note the values of an epoch, with the number of surgeries before."""
        for name, value in values.items():
            point = LoggedPoint(epoch, value, surgeries, surgeries - self.begun, self.fit)
            self.points.setdefault(name, []).append(point)

    def note_validated(self, names: Iterable[str]) -> None:
        """Note the names of metrics logged in validation."""
        self.validated += [name for name in names if name not in self.validated]

    def of_this_fit(self) -> dict[str, list[tuple[int, float]]]:
        """Return the present fit's points (epoch, value) by name."""
        found = {name: [p[:2] for p in points if p.fit == self.fit] for name, points in self.points.items()}
        return {name: points for name, points in found.items() if points}

    def state_dict(self) -> dict[str, Any]:
        """Return primitives."""
        return {
            "points": {name: [tuple(point) for point in points] for name, points in self.points.items()},
            "validated": list(self.validated),
            "dense": dict(self.dense),
            "fit": self.fit,
            "begun": self.begun,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> LoggedHistory:
        """Read a state from `state_dict`, or from earlier versions: a history of epochs and values alone."""
        points = state["points"] if "points" in state else state["history"]
        return cls(
            points={name: [LoggedPoint(*point) for point in found] for name, found in points.items()},
            validated=list(state.get("validated", ())),
            dense=dict(state.get("dense", {})),
            fit=state.get("fit", 0),
            begun=state.get("begun", 0),
            resumed=True,
        )


def logged_now(results: Any, on_step: bool = False) -> dict[str, float]:
    """Return the metrics logged since the loop of `results` began its epoch, of all dataloaders.

    `trainer.callback_metrics` does not serve: metrics of earlier epochs stay there.

    Args:
        results: Lightning's collection of one loop; None: the loop has not run.
        on_step: Whether the last batch's value is read for metrics not averaged over the epoch.
    """
    found: dict[str, float] = {}
    present = results.dataloader_idx if results is not None else None
    for index in dict.fromkeys(item.meta.dataloader_idx for item in (results or {}).values()):
        results.dataloader_idx = index
        for steps in (True, False) if on_step else (False,):
            found |= {name: float(value) for name, value in results.metrics(on_step=steps)["callback"].items()}
    if results is not None:
        results.dataloader_idx = present
    return found


def logged_in_training(trainer: pl.Trainer) -> dict[str, float]:
    """Return the metrics logged by training in the present epoch, except those of our own callbacks."""
    found = logged_now(trainer.fit_loop.epoch_loop._results, on_step=True)
    return {name: value for name, value in found.items() if name not in OF_CALLBACKS}
