"""Narrowed models saved, reloaded and told of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cases.engine import unchanged
from cases.models.habits import tiny_vit
from cases.models.tiny import tiny_inputs, tiny_llama
from cases.width.masks import maps
from cases.width.narrow import (
    CASES,
    REWRITE,
    first_conv,
    head_edit,
    images,
    neuron_edit,
    reads,
    stirred_vit,
    tensors_held,
    width_of,
    without,
)

from prunerecover import compare, load_pruned, plan_depth, save_pruned
from prunerecover.apply import apply_plan
from prunerecover.cost.macs import count_macs
from prunerecover.plan.edits import Narrow, Remove
from prunerecover.plan.groups import Setting, Slice
from prunerecover.plan.plan import Plan
from prunerecover.plan.removed_units import removed_units, shortened
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.surgery.provenance import plan_for


def test_removed_names_every_unit_as_in_the_model_that_the_plan_starts_from() -> None:
    plan = Plan(edits=(REWRITE, first_conv((1, 4)), head_edit(gone=(2,)), first_conv((0, 4), of=6)))
    assert plan.removed == {
        "channel": ("conv1[1]", "conv1[4]", "conv1[0]", "conv1[6]"),
        "head": ("blocks.1.attn[2]",),
    }
    assert plan.needed_tensors == ()


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


def llama_neurons(index: int) -> Narrow:
    mlp = f"model.layers.{index}.mlp"
    rows = tuple(Slice(tensor=f"{mlp}.{name}.weight", dim=0) for name in ("gate_proj", "up_proj"))
    settings = (
        Setting(module=mlp, attribute="intermediate_size"),
        Setting(module="", attribute="config.intermediate_size"),
    )
    gone = tuple(range(index, index + 12))
    return without(f"{mlp}.gate_proj", "neuron", 48, gone, (*rows, reads(f"{mlp}.down_proj")), settings=settings)


def test_transformers_model_with_equal_layers_is_still_a_standard_one(tmp_path: Path) -> None:
    model = tiny_llama()
    plan = plan_for(model, [llama_neurons(i) for i in range(4)], method="test")
    applied = apply_plan(model, plan)
    assert model.config.intermediate_size == model.model.layers[3].mlp.intermediate_size == 36
    save_pruned(model, plan, tmp_path / "pruned")
    ids = tiny_inputs("llama")["input_ids"]
    for again in (type(model).from_pretrained(tmp_path / "pruned").eval(), load_pruned(tmp_path / "pruned")):
        assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits)
    second = plan_depth(model, remove={"attention": 1, "block": 1}, batches=[tiny_inputs("llama", 8)])
    deeper = apply_plan(model, second)
    fresh = tiny_llama()
    apply_plan(fresh, plan + second)
    assert torch.equal(fresh(input_ids=ids).logits, model(input_ids=ids).logits)
    undo(model, deeper.journal)
    undo(model, applied.journal)
    assert model.config.intermediate_size == 48
    assert torch.equal(model(input_ids=ids).logits, tiny_llama()(input_ids=ids).logits)


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


def test_saved_equals_reloaded(tmp_path: Path) -> None:
    model = tiny_vit(depth=3, num_heads=4).eval()
    plan = width_of(model, 1)
    apply_plan(model, plan)
    plan = plan + plan_for(model, [Remove(unit="blocks.0", kind="block")], method="test")
    apply_edits(model, plan.edits[-1:])
    again = load_pruned(save_pruned(model, plan, tmp_path / "pruned"))
    assert torch.equal(again(images()), model(images()))
    assert again.blocks[0].attn.num_heads == 2


@pytest.mark.parametrize("name", ["two groups of one tensor", "shortcut", "depthwise", "experts", "tied"])
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


@pytest.mark.slow
def test_a_new_process_gives_the_same_outputs(tmp_path: Path, in_a_new_process: Callable[[str], None]) -> None:
    case = CASES["shortcut"]
    model = case.build()
    plan = plan_for(model, case.edits, method="test")
    apply_plan(model, plan)
    save_pruned(model, plan, tmp_path / "pruned")
    in_a_new_process(f"""
from cases.width.narrow import CASES
from prunerecover import load_pruned
case = CASES["shortcut"]
model = load_pruned("{tmp_path}/pruned", case.build())
torch.save(model(case.example()), "{tmp_path}/out.pt")
""")
    assert torch.equal(torch.load(tmp_path / "out.pt", weights_only=True), model(case.example()))
