"""Judge sets of units of a supported family, each with the best that it can leave in its place."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from prunerecover.calibration.calibrator import Calibrator
from prunerecover.calibration.candidates import Candidate, Choice
from prunerecover.calibration.held_out import Cost, Terms
from prunerecover.importance.registry import check_finite
from prunerecover.model.paths import is_within
from prunerecover.plan.units import Unit, names_of

Gone = frozenset[str]


class CalibratedSets:
    """Judges sets of units by output divergence with fitted stand-ins; what is known serves all later searches.

    While units are searched for, each has the stand-in that was fitted to it alone, on the dense model: blocks a map,
    as long as what it is folded into stays. What is chosen is fitted anew, together.

    Args:
        calibrator: Fits and judges stand-ins.
        refit: Whether stand-ins are fitted anew for every set that is judged, which takes several times as long.

    Attributes:
        together: How many units share the run through the blocks before them.
        refused: Nothing is: every unit of a family can go.
        leaves: What units left when they were fitted last, by name and by kind.
    """

    together = 4
    refused = ""

    def __init__(self, calibrator: Calibrator, refit: bool = False) -> None:
        self.calibrator, self.refit = calibrator, refit
        self.leaves: dict[str, str] = {}
        self._alone: dict[str, Candidate] = {}
        self._scores: dict[Gone, dict[str, float]] = {}
        self._raced: dict[tuple[Gone, Gone, tuple[float, ...] | None], dict[str, float]] = {}
        self._terms: defaultdict[Gone, defaultdict[str, Terms]] = defaultdict(lambda: defaultdict(Terms))
        self._choices: dict[Gone, list[Choice]] = {frozenset(): []}
        self._tuned: dict[Gone, float] = {}  # divergence before

    def scores(self, gone: Sequence[Unit], moves: Sequence[tuple[Unit, ...]]) -> list[float]:
        """Return the output divergence of each unit on top of what is gone.

        Args:
            gone: Units that are gone.
            moves: Of one unit each.

        Raises:
            ValueError: If a divergence is NaN or infinite.
        """
        units = [unit for (unit,) in moves]
        known = self._scores.setdefault(names_of(gone), {})
        new = [unit for unit in units if unit.name not in known]
        if new:
            divergences = self._fitted(gone, new) if self.refit or not gone else self._judged(gone, new)
            check_finite(divergences, "output_divergence")
            known |= divergences
        return [known[unit.name] for unit in units]

    def races(self, moves: Sequence[tuple[Unit, ...]]) -> bool:
        """Whether there is something for all units of some moves that stands in for them while they are judged."""
        return all(self._without_fit(unit) is not None for (unit,) in moves)

    def race(
        self,
        gone: Sequence[Unit],
        moves: Sequence[tuple[Unit, ...]],
        cost: Cost,
        bounds: Sequence[float] | None = None,
    ) -> list[float]:
        """Return divergences as `scores` does, but of moves that are beaten only an estimate that is higher.

        Args:
            gone: Units that are gone.
            moves: Of one unit each.
            cost: Of a move, by its number and its divergence, in which it does not fall.
            bounds: What each move costs at least. Where that alone is too much, its divergence is infinite.

        Raises:
            ValueError: If a divergence is NaN.
        """
        units = [unit for (unit,) in moves]
        known = self._scores.setdefault(names_of(gone), {})
        stand_ins = {unit: one for unit in units if (one := self._without_fit(unit, gone)) is not None}
        if len(stand_ins) < len(units) or all(unit.name in known for unit in units):
            return self.scores(gone, moves)
        self._alone = {unit.name: candidate for unit, candidate in stand_ins.items()} | self._alone
        key = names_of(gone), names_of(units), None if bounds is None else tuple(bounds)
        if key not in self._raced:
            present = [c.candidate for c in self.choices(gone)] if self.refit else self._beside_each_other(gone)
            terms = None if self.refit else self._terms[names_of(gone)]  # what is refitted may be tuned in between
            found = self.calibrator.race(stand_ins, present, cost, bounds, terms)
            self._raced[key] = {name: divergence for name, (divergence, _) in found.items()}
            run = {name: divergence for name, (divergence, exact) in found.items() if exact or divergence != math.inf}
            check_finite(run, "output_divergence")
            known |= {name: divergence for name, (divergence, exact) in found.items() if exact}
        return [self._raced[key][unit.name] for unit in units]

    def rough(self, moves: Sequence[tuple[Unit, ...]]) -> list[float]:
        """Return the output divergence of each unit alone: fits take all samples."""
        return self.scores((), moves)

    def divergence(self, units: Sequence[Unit]) -> float:
        """Return the output divergence without units, each with what it left when it was judged.

        Tuned, a set counts as no worse than before, as those that are not tuned do: see `calibration.tuning`.
        """
        if self.refit:
            self.settle(units)
        choices = self._choices.get(names_of(units))
        if choices is not None:
            found = choices[-1].divergence if choices else 0.0
            return min(found, self._tuned.get(names_of(units), found))
        return self.scores(units[:-1], [tuple(units[-1:])])[0]

    def settle(self, units: Sequence[Unit]) -> None:
        """Fit what units leave, each on the model without those before it in depth."""
        self.choices(units)

    def tune(self, units: Sequence[Unit]) -> None:
        """Tune what was fitted for these units on the network's output."""
        if names_of(units) not in self._tuned:
            solved, before = self.choices(units), self.divergence(units)
            self._choices[names_of(units)] = self.calibrator.tuned(solved)
            self._tuned[names_of(units)] = before

    def leave_maps(self, units: Sequence[Unit]) -> bool:
        """Whether runs of blocks among these units leave a map, which gains most by tuning."""
        return any(choice.candidate.fold is not None for choice in self.choices(units))

    def finished(self, units: Sequence[Unit]) -> list[Choice]:
        """Return what units leave once nothing else is searched for; see `Calibrator.finished`."""
        tuned = names_of(units) in self._tuned and not self.leave_maps(units)
        return self.choices(units) if tuned else self.calibrator.finished(self.choices(units))

    def choices(self, units: Sequence[Unit]) -> list[Choice]:
        """Return what units leave together, in order of depth.

        Args:
            units: The latest one last: those before it in depth are not fitted again.
        """
        if names_of(units) not in self._choices:
            found = self.calibrator.choose(units, known=self._choices.get(names_of(units[:-1]), []))
            self._choices[names_of(units)] = found
            self._note(found)
        return self._choices[names_of(units)]

    def leaves_of(self, units: Sequence[Unit]) -> dict[str, str]:
        """Return what units leave, by name: together if they were fitted so, else as they were fitted last."""
        known = self._choices.get(names_of(units), [])
        return self.leaves | {choice.unit.name: choice.candidate.leaves for choice in known}

    def _fitted(self, gone: Sequence[Unit], units: Sequence[Unit]) -> dict[str, float]:
        """Fit each unit alone on the model without those that are gone, and judge what it leaves."""
        found = self.calibrator.score(units, self.choices(gone))
        self._note(list(found.values()))
        if not gone and not self.refit:
            self._alone |= {name: _light(choice.candidate) for name, choice in found.items()}
        return {name: choice.divergence for name, choice in found.items()}

    def _judged(self, gone: Sequence[Unit], units: Sequence[Unit]) -> dict[str, float]:
        """Judge what units left alone, beside what those that are gone left alone."""
        self.scores((), [(unit,) for unit in (*gone, *units)])  # fits those that are new
        return self.calibrator.judge({unit: self._beside(unit, gone) for unit in units}, self._beside_each_other(gone))

    def _without_fit(self, unit: Unit, gone: Sequence[Unit] = ()) -> Candidate | None:
        """Return what stands in for a unit while units are searched for; None if something has to be fitted."""
        known = not self.refit and unit.name in self._alone
        return self._beside(unit, gone) if known else self.calibrator.bare(unit)

    def _beside_each_other(self, units: Sequence[Unit]) -> list[Candidate]:
        return [self._beside(unit, units) for unit in units]

    def _beside(self, unit: Unit, others: Sequence[Unit]) -> Candidate:
        """Return what stands in for a block without its map where another unit takes away what the map is folded into.

        Fitted together, they may leave a map elsewhere.
        """
        alone = self._alone[unit.name]
        if alone.fold is None or not any(self._takes_away(other, alone.fold.into) for other in others):
            return alone
        bare = self.calibrator.bare(unit)
        assert bare is not None, "only blocks leave maps"
        return bare

    def _takes_away(self, unit: Unit, linear: str) -> bool:
        """Whether nothing of a linear is left with what stands in for a unit."""
        if unit.kind != "activation":
            return is_within(linear, unit.name)
        layout = self.calibrator.layout
        forward = layout.blocks[layout.block_of(unit.name)].feed_forward
        assert forward is not None
        return self._alone[unit.name].leaves == "affine" and linear in (forward.first, forward.second)

    def _note(self, choices: Sequence[Choice]) -> None:
        self.leaves |= {name: c.candidate.leaves for c in choices for name in (c.unit.kind, c.unit.name)}


def _light(stand_in: Candidate) -> Candidate:
    """Return a stand-in that holds half the memory: it serves to judge other units, and nothing else."""
    values = {name: value.bfloat16() if value.ndim > 1 else value for name, value in stand_in.values.items()}
    return replace(stand_in, values=values)
