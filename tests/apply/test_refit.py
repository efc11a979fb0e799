"""Refitted weights and maps folded into linears: exact, undone without a trace, refused where unfit."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.engine import batch_of, batches_of, build, output_of, unchanged
from torch import Tensor, nn
from torch.nn.utils import prune

from prunerecover.apply import apply_plan, refit_plan
from prunerecover.divergence.registry import output_divergence
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Fold
from prunerecover.plan.plan import Plan
from prunerecover.planning.plan_depth import plan_depth
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.surgery.merging import block_removals, merge, merge_edits
from prunerecover.surgery.optimizer_update import update_optimizer
from prunerecover.surgery.provenance import plan_for


def trained(model: nn.Module) -> nn.Module:
    """Return the model with other weights of the same structure."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator) * parameter.std())
    return model


def divergence(dense: nn.Module, pruned: nn.Module, name: str) -> float:
    batch = batch_of(name, 32, seed=77)
    return float(output_divergence(output_of(dense, batch), output_of(pruned, batch)))


@pytest.mark.parametrize("name", ["timm_all", "gpt2", "bert"])
def test_refit_on_the_same_weights_changes_nothing(name: str) -> None:
    model, batches = build(name), batches_of(name)
    plan = plan_depth(model, remove={"attention": 1, "activation": 2, "block": 1}, batches=batches)
    again = refit_plan(model, plan, batches)
    assert again.edits == plan.edits
    for key, tensor in plan.tensors.items():
        assert torch.allclose(again.tensors[key], tensor, atol=1e-4)


@pytest.mark.slow
def test_refit_fits_the_weights_at_hand() -> None:
    batches = batches_of("timm", count=8, n=8)
    plan = plan_depth(build("timm"), remove={"attention": 1, "activation": 2}, batches=batches)
    other = trained(build("timm"))
    stale, fresh = copy.deepcopy(other), copy.deepcopy(other)
    stale_plan = plan.model_copy(update={"source": plan.source.model_copy(update={"weights": None})})
    apply_plan(stale, stale_plan.with_tensors(plan.tensors))
    apply_plan(fresh, plan, refit=batches)
    assert divergence(other, fresh, "timm") < divergence(other, stale, "timm")


def test_named_replacements_stay_what_they_are() -> None:
    batches = batches_of("timm")
    for replace in ("identity", "zero"):
        plan = plan_depth(build("timm"), remove={"attention": 1, "mlp": 1}, batches=batches, replace=replace)
        again = refit_plan(trained(build("timm")), plan, batches)
        assert again.edits == plan.edits
        assert not again.tensors


def sum_of_stages(name: str, batches: list[torch.Tensor]) -> Plan:
    """Prune, merge, take out a block, prune again: names and structure move on the way."""
    model = build(name)
    total = Plan()
    for remove in ({"activation": 1, "block": 1}, {"attention": 1, "activation": 1}):
        plan = plan_depth(model, remove=remove, batches=batches)
        apply_plan(model, plan)
        total = total + plan + merge(model)
    return total


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm", "gpt2"])
def test_sum_of_plans_is_refitted_stage_by_stage(name: str) -> None:
    batches = batches_of(name)
    total = sum_of_stages(name, batches)
    model = build(name)
    again = refit_plan(model, total, batches)
    assert again.tensors.keys() == total.tensors.keys()
    for key, tensor in total.tensors.items():
        assert torch.allclose(again.tensors[key], tensor, atol=2e-3), key
    apply_plan(model, total, refit=batches)


def test_too_few_samples_to_fit_are_refused() -> None:
    plan = plan_depth(build("timm"), remove={"activation": 1}, batches=batches_of("timm"))
    model = trained(build("timm"))
    message = r"Expected at least 8 samples to fit 'blocks.*act' again, but got 4. Pass more batches"
    with unchanged(model), pytest.raises(ValueError, match=message):
        apply_plan(model, plan, refit=[batch_of("timm", 4)])


def test_refit_of_another_model_is_refused() -> None:
    plan = plan_depth(build("timm"), remove={"activation": 1}, batches=batches_of("timm"))
    with pytest.raises(ValueError, match="Expected the model that the plan was made for"):
        refit_plan(build("timm_all"), plan, batches_of("timm"))


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


def test_maps_of_earlier_plans_are_not_fitted_again() -> None:
    edit, tensors = fold("timm")
    edits = [edit, *block_removals(build("timm"), [2])]
    plan = plan_for(build("timm"), edits, method="depth/output_divergence", seed=0, tensors=tensors)
    match = r"can be fitted again, but 'blocks.2' leaves a map in 'blocks.1.mlp.fc2', as plans of earlier versions do"
    with pytest.raises(ValueError, match=match):
        refit_plan(trained(build("timm")), plan, batches_of("timm"))
    model = build("timm")
    apply_plan(model, plan)
    assert len(model.blocks) == 3


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
