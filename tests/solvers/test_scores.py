"""Scores of options: measured ones stay, those between lie between, and what is chosen is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from prunerecover.library.variants import DENSE
from prunerecover.solvers.program import Option, Program
from prunerecover.solvers.scores import Scores, scores_between

SIZES = [Option(str(kept), math.nan, {"macs": 0.1 * (8 - kept)}) for kept in range(8, 2, -1)]
GONE = Option("zero", math.nan, {"macs": 0.8}, gone=True)


def test_scores_between_rise_with_what_is_removed_and_small_steps_cost_less_than_their_part() -> None:
    known = {"8": 0.0, "5": 1.0, "3": 9.0, "zero": 20.0}
    found = scores_between([*SIZES, GONE], known)
    assert found == sorted(found)
    assert [found[0], found[3], found[5], found[6]] == [0.0, 1.0, 9.0, 20.0]
    assert found[1] < 1 / 3
    assert found[4] < 5


def test_options_beyond_measured_ones_cannot_be_taken_unless_their_scores_are_guessed() -> None:
    known = {"a": {"8": 0.0, "5": 1.0}}
    options = {"a": [*SIZES, GONE]}
    scores = [o.score for o in Scores(Program(options), known, lambda _: []).program.options["a"]]
    assert scores[4:] == [math.inf] * 3
    guessed = Scores(Program(options), known, lambda _: [], {"a": {"7": 9.0, "4": 1.5}}).program.options["a"]
    assert guessed[1].score == scores[1] < 9.0
    assert [one.score for one in guessed[4:]] == [1.5, math.inf, math.inf]


def test_options_that_fail_bend_no_curve() -> None:
    found = scores_between(SIZES, {"8": 0.0, "6": math.inf, "4": 2.0, "3": 3.0})
    assert found[2] == math.inf
    assert all(math.isfinite(score) for number, score in enumerate(found) if number != 2)


def test_what_is_chosen_is_measured_once_and_chosen_again_by_its_score() -> None:
    truth = {"8": 0.0, "7": 5.0, "6": 6.0, "5": 7.0, "4": 8.0, "3": 9.0}
    asked: list[str] = []

    def measure(new: Sequence[tuple[str, str]]) -> list[float]:
        asked.extend(f"{site} {name}" for site, name in new)
        return [truth[name] for _, name in new]

    convex = [Option(o.name, math.nan, o.saved) for o in SIZES]
    steep = [Option(DENSE, 0.0, {}), Option("half", 6.5, {"macs": 0.2})]
    known = {"a": {"8": 0.0, "3": 9.0}, "b": {DENSE: 0.0, "half": 6.5}}
    scores = Scores(Program({"a": convex, "b": steep}), known, measure)
    need = {"macs": 0.1}
    while scores.measured(found := scores.program.solve(need)):
        pass
    assert found == {"a": "7", "b": DENSE}
    assert asked == ["a 7"]
    assert scores.program.options["a"][1].score == pytest.approx(5.0)
