"""Narrowed models saved, reloaded and told of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cases.engine import unchanged
from cases.width.masks import maps
from cases.width.narrow import CASES, first_conv, head_edit, images, neuron_edit, stirred_vit, tensors_held

from prunerecover import compare, load_pruned, save_pruned
from prunerecover.apply import apply_plan
from prunerecover.cost.macs import count_macs
from prunerecover.plan.edits import Remove
from prunerecover.plan.removed_units import removed_units, shortened
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.surgery.provenance import plan_for


def test_removed_units_are_named_as_in_the_dense_model() -> None:
    edits = [
        first_conv((1, 4)),
        Remove(unit="blocks.0", kind="block"),
        head_edit(block=0, gone=(1,)),
        first_conv((0, 4), of=6),
        head_edit(block=0, gone=(1,), heads=3),
    ]
    found = removed_units(edits)
    assert [unit.name for unit in found if unit.kind == "channel"] == ["conv1[1]", "conv1[4]", "conv1[0]", "conv1[6]"]
    assert [unit.name for unit in found if unit.kind == "head"] == ["blocks.1.attn[1]", "blocks.1.attn[2]"]
    assert {unit.leaves for unit in found} == {"nothing"}
    assert shortened(unit.name for unit in found) == ["conv1[1, 4, 0, 6]", "blocks.0", "blocks.1.attn[1, 2]"]
    assert shortened(f"conv1[{i}]" for i in range(9)) == ["conv1[9 units]"]


def test_edits_that_do_not_follow_each_other_are_named_as_they_are() -> None:
    found = removed_units([first_conv((1, 4)), first_conv((7,))])
    assert [unit.name for unit in found] == ["conv1[1]", "conv1[4]", "conv1[7]"]


def test_plan_of_a_cnn_counts_what_is_left() -> None:
    model = CASES["convolution"].build()
    with unchanged(model):
        plan = plan_for(model, [first_conv()], method="test", example=maps()[:1])
    apply_plan(model, plan)
    assert plan.result.macs == count_macs(model, maps()[:1])
    assert plan.source.constructor is None


def test_what_went_is_told_in_short(tmp_path: Path) -> None:
    model, dense = stirred_vit(), stirred_vit()
    depth = Remove(unit="blocks.2.attn", kind="attention")
    plan = plan_for(model, [neuron_edit(), head_edit(gone=(0, 2)), depth], method="test")
    apply_plan(model, plan)
    text = compare(dense, model, images(2), plan=plan, pairs=2, warmup=0).to_markdown()
    assert "- neuron: 3 of 64 (5%): `blocks.1.mlp.fc1` 3 of 64\n- head: 2 of 4 (50%): `blocks.1.attn` 2 of 4\n" in text
    assert "- attention: `blocks.2.attn` (zero)" in text
    figure = plan.plot(tmp_path / "plan.png")
    titles = [part.get_suptitle().replace("\n", " ") for part in figure.subfigs]
    assert titles == ["Removed: attention 1", "Removed: neuron 3 of 64, head 2 of 4"]


@pytest.mark.gpu
def test_what_was_taken_waits_on_the_cpu_and_returns_to_the_device() -> None:
    model = CASES["shortcut"].build().cuda()
    before = {name: (tensor, tensor.clone()) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    journal = apply_edits(model, CASES["shortcut"].edits).journal
    assert model.shortcut.weight.is_cuda
    journal.to_cpu()
    assert not any(tensor.is_cuda for entry in journal.entries for tensor in tensors_held(entry))
    undo(model, journal)
    after = dict((*model.named_parameters(), *model.named_buffers()))
    assert all(after[name] is tensor and torch.equal(tensor, value) for name, (tensor, value) in before.items())
    assert all(tensor.is_cuda for tensor in after.values())


@pytest.mark.parametrize("name", ["shortcut", "experts", "tied"])
def test_saved_equals_reloaded_into_a_dense_model(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = case.build()
    plan = plan_for(model, case.edits, method="test")
    apply_plan(model, plan)
    save_pruned(model, plan, tmp_path / "pruned")
    for fresh in (case.build(), case.build().to("meta")):
        again = load_pruned(tmp_path / "pruned", fresh)
        assert torch.equal(again(case.example()), model(case.example()))
        assert repr(again) == repr(model)
    if name == "tied":
        assert again.head.weight is again.embed.weight
