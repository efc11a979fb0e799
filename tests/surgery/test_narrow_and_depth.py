"""Width and depth compose in one plan, in either order."""

from __future__ import annotations

import copy

import torch
from cases.width.narrow import head_edit, images, neuron_edit, stirred_vit, width_of

from prunerecover import find_units, merge, plan_depth
from prunerecover.apply import apply_plan
from prunerecover.plan.edits import Merge, Remove, Replace
from prunerecover.plan.removed_units import removed_units
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.surgery.provenance import plan_for


def test_depth_after_width() -> None:
    model, fresh = stirred_vit(), stirred_vit()
    first = plan_for(model, [e for b in range(3) for e in (head_edit(b, (b,)), neuron_edit(b))], method="test")
    apply_plan(model, first)
    units = {unit.name: unit for unit in find_units(model, batches=images(1))}
    assert units["blocks.0.attn"].params == sum(p.numel() for p in (*model.blocks[0].attn.parameters(),)) + 32
    second = plan_depth(
        model, remove={"attention": 1, "activation": 1, "block": 1}, batches=[images()], search="one_shot"
    )
    apply_plan(model, second)
    assert set((first + second).removed) == {"head", "neuron", "attention", "activation", "block"}
    both = first + second + merge(model)
    apply_plan(fresh, both)
    assert torch.equal(fresh(images()), model(images()))
    assert sum(p.numel() for p in fresh.parameters()) == both.result.params


def test_merged_equals_unmerged_on_a_narrowed_model() -> None:
    model = stirred_vit().double()
    apply_plan(model, width_of(model, 1))
    values = {"e0.slope": torch.rand(61), "e0.bias": torch.rand(61)}
    edit = Replace(unit="blocks.1.mlp.act", kind="activation", leaves="slope_bias", tensors=tuple(values))
    apply_edits(model, [edit], values)
    before = model(images().double())
    assert [type(e) for e in merge(model).edits] == [Merge]
    assert model.blocks[1].mlp.fc1.weight.shape == (16, 16)
    assert torch.allclose(model(images().double()), before, atol=1e-9)


def test_width_after_depth() -> None:
    model, fresh = stirred_vit(), stirred_vit()
    first = plan_for(
        model, [Remove(unit="blocks.0", kind="block"), Remove(unit="blocks.1.mlp", kind="mlp")], method="t"
    )
    apply_plan(model, first)
    second = plan_for(model, [head_edit(0, (1,)), neuron_edit(0), head_edit(1, (0,))], method="test")
    journal = apply_plan(model, second).journal
    apply_plan(fresh, first + second)
    assert torch.equal(fresh(images()), model(images()))
    names = [unit.name for unit in removed_units((first + second).edits)]
    assert {"blocks.1.attn[1]", "blocks.2.attn[0]"} <= set(names)
    undo(model, journal)
    expected = stirred_vit()
    apply_plan(expected, first)
    assert torch.equal(model(images()), expected(images()))


def test_replacements_are_fitted_anew_behind_a_narrowing() -> None:
    model, other = stirred_vit(), stirred_vit()
    first = width_of(model, 1)
    apply_plan(model, first)
    second = plan_depth(model, remove={"activation": 2}, batches=[images(16)], ignore=["blocks.1.*"])
    plan = first + second
    with torch.no_grad():
        other.head.weight.mul_(1.5)
    expected = copy.deepcopy(other)
    apply_plan(other, plan, refit=[images(16)])
    apply_plan(expected, first)
    apply_plan(expected, second, refit=[images(16)])
    assert torch.equal(other(images()), expected(images()))
    assert other.blocks[1].mlp.fc1.weight.shape[0] == 61
