from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prunerecover.routing.comparison import compare_routes, should_route

RNG = np.random.default_rng(0)
SCORES = RNG.normal(size=(200, 3))


def test_the_oracle_is_the_best_set_of_each_question() -> None:
    found = compare_routes(SCORES, SCORES.argmax(1).tolist(), ("a", "b", "c"))
    assert found.routed.value == found.oracle.value == pytest.approx(SCORES.max(1).mean())
    assert found.static.value == pytest.approx(SCORES[:, 0].mean())
    assert found.gap_closed == 1
    assert found.worth_it
    assert sum(found.picked.values()) == 200


def test_picking_by_chance_is_not_worth_it() -> None:
    found = compare_routes(SCORES, RNG.integers(0, 3, 200).tolist(), ("a", "b", "c"), dense=SCORES[:, 0] + 1)
    assert not found.worth_it
    assert "Routing is not ahead of the static set on 200 questions" in str(found)
    assert "| dense |" in str(found)


def test_few_questions_are_worth_nothing() -> None:
    found = compare_routes(SCORES[:5], SCORES[:5].argmax(1).tolist(), ("a", "b", "c"), static=1)
    assert not found.worth_it
    assert "[range " in str(found)


@pytest.mark.parametrize(
    ("scores", "routes", "said"),
    [
        ([[0, 1]] * 9 + [[0.5, 0]], [1] * 10, "ahead of the static set on 10 questions: +0.8500 "),
        ([[1, 0.5]] * 9 + [[0, 0.1]], [1] * 10, "behind the static set on 10 questions: -0.4400 [-0.5000, -0.3200]. "),
        ([[1, 0]] * 9, [0] * 9, "+0.0000 [+0.0000, +0.0000]. No set does better than the static one on any of them."),
        ([[1], [0]], [0, 0], "One set serves all 2 questions: there is nothing to route."),
    ],
)
def test_what_is_said_of_the_way_to_the_oracle(scores: list[list[float]], routes: list[int], said: str) -> None:
    written = str(compare_routes(scores, routes, ("a", "b")[: len(scores[0])]))
    assert said in written
    assert ("| oracle |" in written) is (len(scores[0]) > 1)


def test_a_saved_model_routes_if_it_is_ahead_in_likelihood_and_not_behind_in_accuracy() -> None:
    best, worst = SCORES.argmax(1).tolist(), SCORES.argmin(1).tolist()
    ahead, behind, level = (compare_routes(SCORES, picked, ("a", "b", "c")) for picked in (best, worst, [0] * 200))
    assert should_route(ahead, ahead)
    assert should_route(ahead, level)
    assert not should_route(ahead, behind)
    assert not should_route(level, ahead)


@pytest.mark.parametrize(
    ("routes", "changes", "message"),
    [
        ([0, 1, 3], {}, "Expected routes from 0 to 2, but got 3"),
        ([0, 1, -1], {}, "Expected routes from 0 to 2, but got -1"),
        ([0, 1, 2], {"static": 3}, "Expected the static set's number from 0 to 2, but got 3"),
        ([0, 1, 2], {"dense": [0.5]}, r"Expected a score of the dense model for each of 3 questions, but got .*\(1,\)"),
        ([], {}, "Expected one question or more"),
    ],
)
def test_numbers_that_do_not_fit(routes: list[int], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare_routes(SCORES[: len(routes)], routes, ("a", "b", "c"), **changes)


def test_scores_of_other_questions() -> None:
    with pytest.raises(ValueError, match=r"Expected scores of 2 questions under 3 sets, but got shape \(200, 3\)"):
        compare_routes(SCORES, [0, 1], ("a", "b", "c"))
