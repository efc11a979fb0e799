"""A map that is folded into a linear: exact, undone without a trace, and refused where it does not fit."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.engine import batch_of, build, output_of, unchanged
from torch import Tensor, nn
from torch.nn.utils import prune

from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Fold
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.surgery.merging import merge_edits
from prunerecover.surgery.optimizer_update import update_optimizer

PLACES = {"llama": "model.layers.1.mlp.down_proj", "gpt2": "transformer.h.1.mlp.c_proj", "timm": "blocks.1.mlp.fc2"}
BLOCKS = {"llama": "model.layers.2", "gpt2": "transformer.h.2", "timm": "blocks.2"}


def fold(name: str) -> tuple[Fold, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    values = {"e0.weight": torch.randn(32, 32, generator=generator), "e0.bias": torch.randn(32, generator=generator)}
    keys = ("e0.weight",) if name == "llama" else ("e0.weight", "e0.bias")
    return Fold(unit=BLOCKS[name], into=PLACES[name], tensors=keys), {key: values[key] for key in keys}


@pytest.mark.parametrize("name", PLACES)
def test_the_output_of_the_linear_goes_through_the_map(name: str) -> None:
    edit, tensors = fold(name)
    folded, by_hand = build(name), build(name)
    apply_edits(folded, [edit], tensors)
    get_module(by_hand, edit.into).register_forward_hook(
        lambda _, __, out: out @ tensors["e0.weight"].T + tensors.get("e0.bias", 0)
    )
    batch = batch_of(name)
    torch.testing.assert_close(output_of(folded, batch), output_of(by_hand, batch), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PLACES)
def test_it_is_undone_without_a_trace(name: str) -> None:
    model = build(name)
    edit, tensors = fold(name)
    with unchanged(model):
        undo(model, apply_edits(model, [edit], tensors).journal)


def test_without_values_the_structure_is_the_same() -> None:
    model = build("llama")
    with unchanged(model):
        assert not apply_edits(model, [fold("llama")[0]]).added


def test_no_parameter_is_added_and_merging_does_nothing_more() -> None:
    model = build("timm")
    names = {name: p.shape for name, p in model.named_parameters()}
    apply_edits(model, [fold("timm")[0]], fold("timm")[1])
    assert {name: p.shape for name, p in model.named_parameters()} == names
    assert merge_edits(model) == []


def test_half_precision_and_frozen_weights_stay_so() -> None:
    model = build("llama").bfloat16().requires_grad_(False)
    apply_edits(model, [fold("llama")[0]], fold("llama")[1])
    weight = get_module(model, PLACES["llama"]).get_parameter("weight")
    assert (weight.dtype, weight.requires_grad) == (torch.bfloat16, False)


def test_the_optimizer_goes_on_with_the_new_weight() -> None:
    model = build("llama")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(**batch_of("llama")).logits.square().mean().backward()
    optimizer.step()
    place = next(i for i, p in enumerate(model.parameters()) if p is get_module(model, PLACES["llama"]).weight)
    update_optimizer(optimizer, apply_edits(model, [fold("llama")[0]], fold("llama")[1]))
    held = optimizer.param_groups[0]["params"]
    assert held[place] is get_module(model, PLACES["llama"]).weight
    assert len(held) == len(list(model.parameters()))
    assert "momentum_buffer" in optimizer.state[held[place]]


def refused(model: nn.Module, edit: Fold, tensors: dict[str, Tensor], match: str) -> None:
    with unchanged(model), pytest.raises(ValueError, match=match):
        apply_edits(model, [edit], tensors)


def test_what_is_no_linear_is_refused() -> None:
    edit, tensors = fold("llama")
    norm = edit.model_copy(update={"into": "model.norm"})
    refused(build("llama"), norm, tensors, "Expected a linear at 'model.norm', to fold a map into, but it is a Llama")


def test_a_map_of_another_width_is_refused() -> None:
    edit, _ = fold("llama")
    match = r"Expected the weight of a map of 32 channels for '.*down_proj', but got weight \(8, 8\)\. Does the"
    refused(build("llama"), edit, {"e0.weight": torch.eye(8)}, match)


def test_a_linear_with_a_bias_needs_both_parts() -> None:
    edit, tensors = fold("timm")
    alone = edit.model_copy(update={"tensors": ("e0.weight",)})
    refused(
        build("timm"), alone, tensors, "Expected the weight and bias of a map of 32 channels for 'blocks.1.mlp.fc2'"
    )


def test_a_weight_that_others_share_is_refused() -> None:
    model = build("llama")
    model.model.layers[0].mlp.down_proj.weight = model.model.layers[1].mlp.down_proj.weight
    refused(model, *fold("llama"), "to have a weight of its own, to fold a map into, but 2 modules share it")


def test_a_masked_weight_is_refused() -> None:
    model = build("llama")
    prune.l1_unstructured(get_module(model, PLACES["llama"]), "weight", 0.5)
    with pytest.raises(ValueError, match="Expected plain parameters to merge, but the weight of 'model.layers.1.mlp"):
        apply_edits(model, [fold("llama")[0]], fold("llama")[1])


def test_a_plan_edited_to_another_model_is_explained() -> None:
    edit, tensors = fold("llama")
    elsewhere = edit.model_copy(update={"into": "model.layers.9.mlp.down_proj"})
    model = copy.deepcopy(build("llama"))
    refused(model, elsewhere, tensors, "fold of 'model.layers.3' failed|Expected")
