"""Sets of units are compared once what they leave is fitted and, among those near the best, tuned."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from cases.engine import batches_of, build

from prunerecover import Budget
from prunerecover.calibration.calibrator import Calibrator
from prunerecover.calibration.candidates import Choice
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.family_planner import FamilyPlanner
from prunerecover.depth.search import joint
from prunerecover.depth.search.goals import Counted
from prunerecover.depth.search.joint import NEAR, JointSearch
from prunerecover.plan.units import Unit, names_of
from prunerecover.session.session import Session


class Tunable:
    """Judges single units by given divergences, and by other ones once they are tuned."""

    together, refused = 1, ""

    def __init__(self, fitted: dict[str, float], tuned: dict[str, float]) -> None:
        self.divergences, self.after = dict(fitted), tuned
        self.tuned: list[str] = []

    def scores(self, gone: tuple[Unit, ...], moves: list[tuple[Unit, ...]]) -> list[float]:
        return [self.divergence((*gone, *move)) for move in moves]

    def rough(self, moves: list[tuple[Unit, ...]]) -> list[float]:
        return self.scores((), moves)

    def divergence(self, units: tuple[Unit, ...]) -> float:
        return sum(self.divergences[unit.name] for unit in units)

    def settle(self, units: tuple[Unit, ...]) -> None:
        pass

    def tune(self, units: tuple[Unit, ...]) -> None:
        (unit,) = units
        self.tuned.append(unit.name)
        self.divergences[unit.name] = self.after[unit.name]


def best(fitted: dict[str, float], tuned: dict[str, float]) -> tuple[str, list[str]]:
    """Return the best of sets of one unit each, and those that were tuned."""
    units = [Unit(name, "block", (name,), 1, 1) for name in fitted]
    judge = Tunable(fitted, tuned)
    (chosen,) = JointSearch(judge, Counted(units, {"block": 1})).best_of([(unit,) for unit in units], judge.tune)
    return chosen.name, judge.tuned


def test_what_counts_is_the_divergence_once_tuned() -> None:
    assert best({"a": 0.60, "b": 0.63}, {"a": 0.54, "b": 0.49}) == ("b", ["a", "b"])


def test_the_first_of_equals_is_taken() -> None:
    assert best({"a": 0.6, "b": 0.5}, {"a": 0.4, "b": 0.4})[0] == "a"


def test_what_tuning_cannot_bring_to_the_front_is_not_tuned() -> None:
    far = 0.5 * NEAR * 1.01
    assert best({"a": 0.5, "b": far, "c": 0.6}, {"a": 0.5, "b": 0.0, "c": 0.55}) == ("a", ["a", "c"])


def test_a_single_set_near_the_best_is_not_tuned_to_be_compared() -> None:
    assert best({"a": 0.5, "b": 0.9}, {"a": 0.0, "b": 0.0}) == ("a", [])


def test_what_gains_little_is_tuned_only_where_it_is_best() -> None:
    units = [Unit(name, "block", (name,), 1, 1) for name in "abc"]
    judge = Tunable({"a": 0.5, "b": 0.6, "c": 0.6}, {"a": 0.45, "b": 0.0, "c": 0.4})
    search = JointSearch(judge, Counted(units, {"block": 1}))
    (chosen,) = search.best_of([(u,) for u in units], judge.tune, lambda gone: gone[0].name == "c")
    assert (chosen.name, judge.tuned) == ("c", ["a", "c"])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_blocks_that_go_are_those_of_least_divergence_once_tuned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned: dict[frozenset[str], float] = {}
    own = Calibrator.tuned

    def noted(calibrator: Calibrator, choices: Sequence[Choice]) -> list[Choice]:
        found = own(calibrator, choices)
        tuned.setdefault(names_of(choice.unit for choice in choices), found[-1].divergence)  # first, not as all is done
        return found

    monkeypatch.setattr(Calibrator, "tuned", noted)
    monkeypatch.setattr(joint, "NEAR", 1e3)
    planner = FamilyPlanner(Session(build(name), batches_of(name)), ("block",), DepthConfig())
    plan = planner.plan(Budget(remove={"block": 2}))
    assert len(tuned) > 1
    assert frozenset(plan.removed["block"]) == min(tuned, key=lambda gone: tuned[gone])
