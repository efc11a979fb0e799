"""`Plan.first`: one search gives a plan for every depth."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.engine import batches_of, build, output_of, plan_of
from cases.sampling import one_in
from torch import nn

from prunerecover import Plan, apply_plan
from prunerecover.model.hashing import tensors_hash
from prunerecover.surgery.merging import block_removals
from prunerecover.surgery.provenance import plan_for

KINDS = {"block": 2, "attention": 1}


@pytest.mark.parametrize("name", one_in(4, ["timm", "llama", "qwen2", "opt", "gpt2"]))
def test_the_first_units_of_a_greedy_plan_are_the_plan_for_fewer(name: str) -> None:
    model = build(name)
    three = plan_of(name, model, remove={"block": 3}, search="greedy", replace="zero")
    for count in (1, 2):
        first = three.first(count)
        fewer = plan_of(name, model, remove={"block": count}, search="greedy", replace="zero")
        assert (first.edits, first.result) == (fewer.edits, fewer.result)
        pruned, other = copy.deepcopy(model), copy.deepcopy(model)
        apply_plan(pruned, first)
        apply_plan(other, fewer)
        batch = batches_of(name)[0]
        assert torch.equal(output_of(pruned, batch), output_of(other, batch))


def test_units_of_several_kinds_go_in_their_order() -> None:
    model = build("llama")
    plan = plan_of("llama", model, remove=KINDS, replace="zero")
    order = [step["unit"] for step in plan.evidence["order"]]
    assert sorted(order) == sorted(name for names in plan.removed.values() for name in names)
    for count in range(4):
        removed = plan.first(count).removed
        assert {name for names in removed.values() for name in names} == set(order[:count])


def test_a_shorter_plan_is_kept_in_a_file(tmp_path) -> None:
    plan = plan_of("llama", build("llama"), remove={"block": 3}).first(2)
    assert Plan.load(plan.save(tmp_path / "plan.json")) == plan
    assert Plan.load(tmp_path / "plan.json").first(1) == plan.first(1)
    assert plan.made_by.arguments["first"] == 2


def test_what_is_left_is_described(tmp_path) -> None:
    model: nn.Module = build("qwen2")
    plan = plan_of("qwen2", model, remove={"block": 3}).first(2)
    apply_plan(model, plan)
    assert tensors_hash(model) == plan.result.tensors
    assert sum(p.numel() for p in model.parameters()) == plan.result.params


def test_all_units_and_none() -> None:
    plan = plan_of("llama", build("llama"), remove={"block": 2})
    assert plan.first(2) is plan
    assert plan.first(0) == Plan()


def test_more_units_than_there_are() -> None:
    plan = plan_of("llama", build("llama"), remove={"block": 2})
    with pytest.raises(ValueError, match="Expected 0 to 2 units, as many as the plan removes, but got 3"):
        plan.first(3)


def test_units_that_leave_something_stay_together() -> None:
    plan = plan_of("timm", build("timm"), remove={"activation": 2})
    with pytest.raises(ValueError, match="Expected a plan whose units leave nothing and whose order of removal is"):
        plan.first(1)


def test_an_order_edited_by_hand_is_no_order() -> None:
    plan = plan_of("llama", build("llama"), remove={"block": 2})
    edited = plan.model_copy(update={"evidence": {**plan.evidence, "order": plan.evidence["order"][:1]}})
    with pytest.raises(ValueError, match="Expected a plan whose units leave nothing"):
        edited.first(1)


def test_all_and_none_of_any_plan() -> None:
    model = build("llama")
    by_hand = plan_for(model, block_removals(model, [1, 2]), method="by hand")  # no order is known
    assert by_hand.first(2) is by_hand
    assert by_hand.first(0) == Plan()
    assert Plan().first(0) == Plan()
    with pytest.raises(ValueError, match="whose order of removal is known"):
        by_hand.first(1)


def test_parts_of_units_are_none() -> None:
    with pytest.raises(TypeError, match="Expected a whole number of units, but got 1.5"):
        Plan().first(1.5)  # type: ignore[arg-type]
