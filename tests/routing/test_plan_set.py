"""Sets of plans and their files, and the comparison of routes with a static set and an oracle."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from cases.models.routed_language import SETS, removing, sets_of
from cases.models.tiny import tiny_llama

from prunerecover import Plan, PlanSet
from prunerecover.plan.edits import Remove
from prunerecover.routing.comparison import compare_routes, should_route
from prunerecover.surgery.provenance import plan_for


@pytest.fixture(scope="module")
def sets() -> PlanSet:
    return sets_of(tiny_llama(num_hidden_layers=6))


def test_blocks_are_those_of_the_dense_model(sets: PlanSet) -> None:
    assert sets.blocks == tuple(map(frozenset, SETS))
    assert sets.shared_prefix == 2
    assert sets.number("set 2") == 2
    with pytest.raises(ValueError, match="Expected one of the sets set 0, .*, but got 'set 9'"):
        sets.number("set 9")


def test_a_file_gives_the_same_sets(sets: PlanSet, tmp_path) -> None:
    path = tmp_path / "sets.json"
    with pytest.raises(FileNotFoundError, match="Expected a file with a set of plans"):
        PlanSet.load(path)
    assert PlanSet.load(sets.save(path)) == sets


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(schema="prunerecover.plan_set/9"), "Expected a set of plans .*plan_set/9"),
        (lambda data: data.update(names=["a"] * 4), "Expected one plan or more, each with a name of its own"),
        (lambda data: data.update(plans=[], names=[]), "Expected one plan or more"),
        (lambda data: data.update(plans=3), "Expected a valid set of plans, but plans is wrong"),
        (lambda data: data["plans"][0].update(schema="else"), "Expected a plan"),
        (lambda data: data["plans"][0]["source"].update(tensors="0"), "they start from different ones"),
        (lambda data: data["plans"][1]["edits"][0].update(unit="x"), "Expected blocks with numbers, but 'set 1' .* x"),
        (lambda data: data.update(names=["a", "b", " ", "d"]), "a name for each plan, but one of .* is empty"),
        (lambda data: data["plans"][1]["edits"][0].update(unit="model.layers.04"), "Expected blocks with numbers"),
        (lambda data: data["plans"][1]["edits"][0].update(unit="h.-1"), "Expected blocks with numbers, but 'set 1'"),
    ],
)
def test_files_edited_by_hand(sets: PlanSet, tmp_path, change, message: str) -> None:
    path = sets.save(tmp_path / "sets.json")
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=message):
        PlanSet.load(path)


def test_only_whole_blocks_are_routed() -> None:
    model = tiny_llama(num_hidden_layers=6)
    attention = plan_for(model, [Remove(unit="model.layers.2.mlp", kind="mlp")], method="by hand")
    with pytest.raises(ValueError, match="Expected plans that remove whole blocks, but 'b' has other edits"):
        PlanSet(names=("a", "b"), plans=(removing(model, 3), attention))


def test_the_dense_model_is_a_route_too() -> None:
    assert PlanSet(names=("dense",), plans=(Plan(),)).blocks == (frozenset(),)


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
        ([0, 1, 2], {"names": ("a", "b")}, r"Expected scores of 3 questions under 2 sets, but got shape \(3, 3\)"),
    ],
)
def test_numbers_that_do_not_fit(routes: list[int], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare_routes(SCORES[: len(routes)], routes, **{"names": ("a", "b", "c"), **changes})
