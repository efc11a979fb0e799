"""Application of plans to copies, wrapped and meta models alike; a wrong plan changes nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.engine import batch_of, batches_of, build, equal, output_of, plan_of, unchanged
from torch import nn

from prunerecover.apply import apply_plan
from prunerecover.model.copies import meta_copy
from prunerecover.model.hashing import tensors_hash
from prunerecover.plan.edits import Remove
from prunerecover.planning.plan_depth import plan_depth


def test_removing_twice_says_so() -> None:
    model = build("timm")
    plan = plan_of("timm", model, remove={"attention": 1})
    apply_plan(model, plan)
    with unchanged(model), pytest.raises(ValueError, match="It has been pruned with this plan already"):
        apply_plan(model, plan)


def test_plan_for_another_model_changes_nothing() -> None:
    plan = plan_of("timm", build("timm"), remove={"attention": 1})
    for other, message in (
        ("timm_all", "this model has 4 blocks. Make a plan for it"),
        ("llama", "but got LlamaForCausalLM"),
    ):
        model = build(other)
        with unchanged(model), pytest.raises(ValueError, match=message):
            apply_plan(model, plan)
    foreign = nn.Linear(2, 2)
    with unchanged(foreign), pytest.raises(ValueError, match="of a supported family"):
        apply_plan(foreign, plan)


def test_tensors_fitted_to_other_weights_are_refused() -> None:
    model = build("timm")
    plan = plan_of("timm", model, remove={"activation": 1})
    with torch.no_grad():
        model.head.weight.mul_(2)
    with unchanged(model), pytest.raises(ValueError, match=r"but the model has others .*Pass refit=batches"):
        apply_plan(model, plan)


def test_structure_alone_applies_to_other_weights() -> None:
    model = build("timm")
    plan = plan_of("timm", model, remove={"attention": 1}, replace="zero")
    with torch.no_grad():
        model.head.weight.mul_(2)
    assert apply_plan(model, plan).removed


def test_plan_that_leaves_another_model_is_taken_back() -> None:
    model = build("timm")
    plan = plan_of("timm", model, remove={"attention": 1}, replace="zero")
    edited = plan.model_copy(update={"edits": (Remove(unit="blocks.0.mlp", kind="mlp"),)})
    with unchanged(model), pytest.raises(ValueError, match="Was the file edited"):
        apply_plan(model, edited)


@pytest.mark.parametrize("name", ["timm_all", "llama", "bert"])
def test_plan_applies_to_a_bfloat16_copy(name: str) -> None:
    model = build(name)
    plan = plan_of(name, model, remove={"attention": 1, "mlp": 1})
    half = copy.deepcopy(model).bfloat16()
    apply_plan(half, plan)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    apply_plan(model, plan)
    expected = model.bfloat16().state_dict()
    assert equal(half.state_dict(), expected)


@pytest.mark.parametrize("name", ["timm_all", "gpt2", "llama"])
def test_plan_applies_on_the_meta_device(name: str) -> None:
    model = build(name)
    bare = meta_copy(model)
    plan = plan_of(name, model, remove={"attention": 1, "mlp": 1, "block": 1})
    apply_plan(bare, plan)
    assert all(p.is_meta for p in bare.parameters())
    assert tensors_hash(bare) == plan.result.tensors
    assert sum(p.numel() for p in bare.parameters()) == plan.result.params


def test_wrapped_model_takes_the_same_plan() -> None:
    model, bare = build("timm"), build("timm")
    wrapped = nn.DataParallel(model)
    plan = plan_depth(wrapped, remove={"attention": 1, "activation": 1}, batches=batches_of("timm"))
    apply_plan(bare, plan)
    apply_plan(wrapped, plan)
    assert torch.equal(output_of(model, batch_of("timm")), output_of(bare, batch_of("timm")))
