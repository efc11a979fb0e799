from __future__ import annotations

import json

import pytest
from cases.models.routed_language import SETS, removing, sets_of
from cases.models.tiny import tiny_llama

from prunerecover import Plan, PlanSet
from prunerecover.plan.edits import Remove
from prunerecover.surgery.provenance import plan_for


@pytest.fixture(scope="module")
def sets() -> PlanSet:
    return sets_of(tiny_llama(num_hidden_layers=6))


def test_blocks_are_those_of_the_dense_model(sets: PlanSet) -> None:
    assert sets.blocks == tuple(map(frozenset, SETS))
    assert sets.shared_prefix == 2
    assert sets.number("set 2") == 2


def test_a_file_gives_the_same_sets(sets: PlanSet, tmp_path) -> None:
    assert PlanSet.load(sets.save(tmp_path / "sets.json")) == sets


def test_a_set_that_is_not_there(sets: PlanSet) -> None:
    with pytest.raises(ValueError, match="Expected one of the sets set 0, .*, but got 'set 9'"):
        sets.number("set 9")


def test_no_file(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="Expected a file with a set of plans"):
        PlanSet.load(tmp_path / "sets.json")


def edited(sets: PlanSet, tmp_path, change) -> None:
    path = sets.save(tmp_path / "sets.json")
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    PlanSet.load(path)


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
    with pytest.raises(ValueError, match=message):
        edited(sets, tmp_path, change)


def test_only_whole_blocks_are_routed() -> None:
    model = tiny_llama(num_hidden_layers=6)
    attention = plan_for(model, [Remove(unit="model.layers.2.mlp", kind="mlp")], method="by hand")
    with pytest.raises(ValueError, match="Expected plans that remove whole blocks, but 'b' has other edits"):
        PlanSet(names=("a", "b"), plans=(removing(model, 3), attention))


def test_the_dense_model_is_a_route_too() -> None:
    assert PlanSet(names=("dense",), plans=(Plan(),)).blocks == (frozenset(),)
