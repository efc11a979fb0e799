"""Judge sets of units of a supported family, each with the best that it can leave in its place."""

from __future__ import annotations

from collections.abc import Sequence

from prunerecover.calibration.calibrator import Calibrator, Choice
from prunerecover.importance.registry import check_unit_scores
from prunerecover.plan.units import Unit, names_of

Gone = frozenset[str]


class CalibratedSets:
    """Judges sets of units by output divergence with fitted stand-ins; what is known serves all later searches.

    Args:
        calibrator: Fits and judges stand-ins.

    Attributes:
        together: How many units share the run through the blocks before them.
        refused: Nothing is: every unit of a family can go.
        leaves: What units left when they were judged last, by name and by kind.
    """

    together = 4
    refused = ""

    def __init__(self, calibrator: Calibrator) -> None:
        self.calibrator = calibrator
        self.leaves: dict[str, str] = {}
        self._scores: dict[Gone, dict[str, float]] = {}
        self._choices: dict[Gone, list[Choice]] = {frozenset(): []}

    def scores(self, gone: Sequence[Unit], moves: Sequence[tuple[Unit, ...]]) -> list[float]:
        """Return the output divergence of each unit, fitted alone on top of what is gone.

        Args:
            gone: Units that were settled before.
            moves: Of one unit each.

        Raises:
            ValueError: If a divergence is NaN or infinite.
        """
        units = [unit for (unit,) in moves]
        known = self._scores.setdefault(names_of(gone), {})
        new = [unit for unit in units if unit.name not in known]
        if new:
            found = self.calibrator.score(new, self.choices(gone))
            self._note(list(found.values()))
            divergences = {name: choice.divergence for name, choice in found.items()}
            check_unit_scores(divergences, "output_divergence")
            known |= divergences
        return [known[unit.name] for unit in units]

    def rough(self, moves: Sequence[tuple[Unit, ...]]) -> list[float]:
        """Return the output divergence of each unit alone: fits take all samples."""
        return self.scores((), moves)

    def settle(self, units: Sequence[Unit]) -> float:
        """Fit what units leave, each on the model without those before it in depth; return the divergence of all."""
        choices = self.choices(units)
        return choices[-1].divergence if choices else 0.0

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
        """Return what units leave, by name: together if they were settled, else as they were judged last."""
        known = self._choices.get(names_of(units), [])
        return self.leaves | {choice.unit.name: choice.candidate.leaves for choice in known}

    def _note(self, choices: Sequence[Choice]) -> None:
        self.leaves |= {name: c.candidate.leaves for c in choices for name in (c.unit.kind, c.unit.name)}
