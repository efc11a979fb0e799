"""Correct groups: cutting the units out of tensors equals setting them to zero, also in small and gated groups."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from cases.models.hand_made_groups import separable_groups
from cases.models.width import BUILD, LARGE
from cases.sampling import one_in
from cases.width.groups import assert_equal, built, found_in, outputs
from cases.width.oracle import masked, narrowed, rewritten, silenced, thirty_percent

from prunerecover import Budget, apply_plan, find_groups, plan_width
from prunerecover.cost.macs import count_macs, macs_by_module
from prunerecover.model.batches import as_inputs
from prunerecover.width.gates import with_a_gate
from prunerecover.width.groups.found import FoundGroups


def families(*but: str) -> list[Any]:
    """Return the names of all families `but` some, as parameters; the large ones are slow."""
    large = (pytest.param(name, marks=pytest.mark.slow) for name in LARGE if name not in but)
    return [*(name for name in BUILD if name not in but), *large]


EXPECTED = {  # groups by kind, counted by hand from the architectures
    "option_a_resnet20": {"channel": 12},
    "bottlenecks": {"channel": 15},
    "resnext": {"channel": 10},
    "vgg": {"channel": 3, "neuron": 2},
    "densenet": {"channel": 12},
    "mobilenet_v2": {"channel": 24},
    "efficientnet": {"channel": 9},
    "convnext": {"channel": 2, "neuron": 4},
    "deit": {"head": 2, "neuron": 2},
    "torchvision_vit": {"head": 2, "neuron": 2},
    "torchvision_swin": {"head": 4, "neuron": 4},
    "timm_swin": {"head": 4, "neuron": 4},
    "bert": {"head": 2, "neuron": 3},
    "segformer": {"head": 3, "neuron": 8, "channel": 1},
    "llama": {"head": 2, "neuron": 2},
    "llama_gqa": {"head": 2, "neuron": 2},
    "llama_gqa_eager": {"head": 2, "neuron": 2},
    "qwen3": {"head": 2, "neuron": 2},
    "opt": {"head": 2, "neuron": 2},
    "gpt2": {"head": 2, "neuron": 2},
    "qwen2_moe": {"head": 2, "neuron": 2},
    "resnet50": {"channel": 37},
    "efficientnet_b0_timm": {"channel": 40},
    "convnext_tiny_timm": {"channel": 4, "neuron": 18},
    "deeplabv3": {"channel": 21},
    "faster_rcnn": {"channel": 15, "neuron": 2},
    "ssdlite": {"channel": 34},
}


def without_normed_channels(name: str) -> FoundGroups:
    """Return the groups without ConvNeXt's channels, whose norms prevent a comparison with zeros."""
    found = found_in(name)
    return replace(found, groups=tuple(g for g in found.groups if not ("convnext" in name and g.kind == "channel")))


@pytest.mark.parametrize("name", families())
def test_all_groups_of_a_family_are_found(name: str) -> None:
    found = found_in(name)
    assert Counter(group.kind for group in found.groups) == EXPECTED[name]


@pytest.mark.parametrize("name", one_in(4, families()))
def test_sliced_equals_masked(name: str) -> None:
    (model, inputs), found = built(name), without_normed_channels(name)
    keep = thirty_percent(found)
    with torch.no_grad():
        dense = outputs(model, inputs)
        sliced = outputs(narrowed(model, found, keep), inputs)
        zeroed = outputs(masked(model, found, keep), inputs)
    assert_equal(sliced, zeroed)
    assert any(
        a.shape != b.shape or (a - b).abs().max() > 1e-3 * b.abs().max() for a, b in zip(sliced, dense, strict=False)
    )


@pytest.mark.parametrize("name", one_in(4, families("densenet")))  # norms after its concatenations add to zeros
def test_sliced_equals_silenced_where_units_are_seen(name: str) -> None:
    (model, inputs), found = built(name), without_normed_channels(name)
    keep = {group: units for group, units in thirty_percent(found).items() if group.taps}
    whole = rewritten(model, found)
    with torch.no_grad(), silenced(whole, keep):
        hushed = outputs(whole, inputs)
    with torch.no_grad():
        assert_equal(outputs(narrowed(model, found, keep), inputs), hushed)


@pytest.mark.parametrize("name", one_in(5, families()))
def test_sliced_models_train_and_keep_the_shapes_of_their_outputs(name: str) -> None:
    (model, inputs), found = built(name), found_in(name)
    small = narrowed(model, found, thirty_percent(found))
    results = outputs(small, inputs)
    with torch.no_grad():
        dense = outputs(model, inputs)
    boxes = name == "faster_rcnn"  # how many it finds is not a size of the model
    assert [t.shape[boxes:] for t in results] == [t.shape[boxes:] for t in dense]
    sum(t.double().square().sum() for t in results if t.is_floating_point()).backward()
    gradients = [p.grad for p in small.parameters() if p.grad is not None]
    assert gradients
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("name", families())
def test_names_are_unique_and_every_unit_is_made_and_read(name: str) -> None:
    groups = found_in(name).groups
    assert len({(group.kind, group.name) for group in groups}) == len(groups)
    for group in groups:
        assert {part.makes for part in group.slices} == {True, False}
        assert group.size > 1


@pytest.mark.parametrize("name", ["timm_swin", "bert", "llama_gqa"])
def test_products_and_layers_add_up_to_all_macs(name: str) -> None:
    """The remainder is the attention of SegFormer's first stage, whose single head is no unit."""
    (model, inputs), found = built(name), found_in(name)
    by_module = macs_by_module(model, inputs)
    layers = {path: n for path, n in by_module.items() if not any(True for _ in model.get_submodule(path).children())}
    first = "segformer.stages.0.blocks.0.attention"
    single = (
        by_module[first] - sum(n for path, n in layers.items() if path.startswith(first)) if first in by_module else 0
    )
    products = as_inputs(inputs).n_samples * sum(group.products * group.size for group in found.groups)
    assert products > 0
    assert products + sum(layers.values()) + single == count_macs(model, inputs)


@pytest.mark.parametrize("name", ["option_a_resnet20", "deit", "llama_gqa", "segformer"])
def test_finding_groups_leaves_no_trace(name: str) -> None:
    model, inputs = BUILD[name]()
    model.train()
    next(model.children()).eval()
    before = {key: (id(t), t.clone()) for key, t in model.state_dict(keep_vars=True).items()}
    modes, hooks = [m.training for m in model.modules()], [len(m._forward_hooks) for m in model.modules()]
    modules, random = list(map(id, model.modules())), torch.get_rng_state()
    find_groups(model, inputs)
    after = model.state_dict(keep_vars=True)
    assert {key: id(t) for key, t in after.items()} == {key: i for key, (i, _) in before.items()}
    assert all(torch.equal(after[key], t) for key, (_, t) in before.items())
    assert [m.training for m in model.modules()] == modes
    assert [len(m._forward_hooks) for m in model.modules()] == hooks
    assert list(map(id, model.modules())) == modules
    assert torch.equal(torch.get_rng_state(), random)
    assert all(t.grad is None for t in model.parameters())


def test_units_without_a_place_for_gates_stay_out_of_the_plan() -> None:
    first, second = separable_groups()
    hidden = dataclasses.replace(first, taps=())
    gated = second if second.taps else dataclasses.replace(second, taps=first.taps)
    with pytest.warns(UserWarning, match=rf"{first.name} stay as they are: their units have no place where"):
        assert with_a_gate([hidden, gated]) == (gated,)


def test_where_none_has_a_place_all_stay_in() -> None:
    hidden = tuple(dataclasses.replace(group, taps=()) for group in separable_groups())
    assert with_a_gate(hidden) == hidden


IDS = torch.randint(1, 60, (4, 9), generator=torch.Generator().manual_seed(0))
TEXT = {"input_ids": IDS, "decoder_input_ids": IDS}


def t5(heads: int) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_decoder_layers": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, num_heads=heads)).eval()


@pytest.mark.slow
@pytest.mark.parametrize("heads", [2, 3])
def test_attentions_that_share_a_position_bias_are_one_group(heads: int) -> None:
    """Cross-attentions add a tensor of zeros, made by the first with its own number of heads."""
    model = t5(heads)
    groups = find_groups(model, TEXT, ("head",)).groups
    (crossing,) = (group for group in groups if "EncDec" in group.name)
    assert {part.tensor.split(".")[2] for part in crossing.slices} == {"0", "1"}  # both blocks
    assert len(groups) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "share"), [(2, 0.4), (3, 0.4)])
def test_plans_of_few_heads_run(heads: int, share: float) -> None:
    model = t5(heads)
    settings: Any = {"importance": "magnitude", "replace": "zero"}
    apply_plan(model, plan_width(model, Budget(ratio={"head": share}), batches=[TEXT], **settings))
    assert model(**TEXT).logits.isfinite().all()
