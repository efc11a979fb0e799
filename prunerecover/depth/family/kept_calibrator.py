"""A calibrator whose results are kept, so that a search that is interrupted fits and judges nothing again.

A result is known by what is asked of which units: everything else it depends on, such as what has gone before and what
a unit costs at least, follows from the results before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from torch import nn

from prunerecover.calibration.calibrator import Calibrator
from prunerecover.calibration.candidates import Candidate, Choice, Form
from prunerecover.calibration.held_out import Cost, Terms
from prunerecover.model.batches import CalibrationSet
from prunerecover.plan.units import Unit
from prunerecover.store.search_store import SearchStore

T = TypeVar("T")


class KeptCalibrator(Calibrator):
    """Fits and judges as `Calibrator` does, unless the store of the search knows the result.

    Args:
        store: Of the search.
        model: See `Calibrator`, as all others.
        samples: Split calibration samples.
        units: All units that may be asked for.
        replace: What units may leave.
        seed: Of what is drawn.
    """

    def __init__(
        self,
        store: SearchStore,
        model: nn.Module,
        samples: CalibrationSet,
        units: Sequence[Unit],
        replace: str,
        seed: int = 0,
    ) -> None:
        super().__init__(model, samples, units, replace, seed)
        self._store = store

    def score(self, units: Sequence[Unit], present: Sequence[Choice] = ()) -> dict[str, Choice]:
        """Fit and judge each unit alone; see `Calibrator.score`."""
        return self._kept("score", units, partial(super().score, units, present))

    def judge(self, stand_ins: Mapping[Unit, Candidate], present: Sequence[Candidate] = ()) -> dict[str, float]:
        """Judge each stand-in alone; see `Calibrator.judge`."""
        return self._kept("judge", stand_ins, partial(super().judge, stand_ins, present))

    def race(
        self,
        stand_ins: Mapping[Unit, Candidate],
        present: Sequence[Candidate],
        cost: Cost,
        bounds: Sequence[float] | None = None,
        terms: Mapping[str, Terms] | None = None,
    ) -> dict[str, tuple[float, bool]]:
        """Judge stand-ins until the cheapest is known; see `Calibrator.race`. What was added up is kept, too."""
        own = {unit.name: Terms() for unit in stand_ins} if terms is None else terms
        race = partial(super().race, stand_ins, present, cost, bounds, own)

        def compute() -> tuple[dict[str, tuple[float, bool]], dict[str, Terms]]:
            found = race()
            return found, {unit.name: dict(own[unit.name]) for unit in stand_ins}

        found, added = self._kept("race", stand_ins, compute)
        for name, known in added.items():
            own[name].update(known)
        return found

    def choose(
        self, units: Sequence[Unit], forms: Mapping[str, Form] | None = None, known: Sequence[Choice] = ()
    ) -> list[Choice]:
        """Fit stand-ins for all units together; see `Calibrator.choose`."""
        return self._kept("choose", units, partial(super().choose, units, forms, known))

    def finished(self, choices: Sequence[Choice]) -> list[Choice]:
        """Return choices fitted to all samples and tuned; see `Calibrator.finished`."""
        return self._kept("finish", (choice.unit for choice in choices), partial(super().finished, choices))

    def tuned(self, choices: Sequence[Choice]) -> list[Choice]:
        """Return choices tuned on the output; see `Calibrator.tuned`."""
        return self._kept("tune", (choice.unit for choice in choices), partial(super().tuned, choices))

    def _kept(self, what: str, units: Iterable[Unit], compute: Callable[[], T]) -> T:
        """Return a result, with what was learnt about held-out samples on the way: later results depend on it."""
        found, self._held_out.told = self._store.result(
            what, [unit.name for unit in units], lambda: (compute(), self._held_out.told)
        )
        return found
