"""Correct groups: cutting the units out of tensors equals setting them to zero, also in small and gated groups."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from cases.models.hand_made_groups import separable_groups
from cases.models.tiny import tiny_inputs, tiny_llama
from cases.models.width import LARGE
from cases.sampling import one_in
from cases.width.groups import assert_equal, built, found_in, outputs
from cases.width.oracle import masked, narrowed, rewritten, silenced, thirty_percent

from prunerecover import Budget, apply_plan, find_groups, plan_width
from prunerecover.cost.macs import count_macs, macs_by_module
from prunerecover.model.batches import as_inputs
from prunerecover.model.copies import share_copy
from prunerecover.model.narrow import when_used
from prunerecover.width.groups.found import FoundGroups
from prunerecover.width.narrowable import with_a_gate

TRANSFORMERS = ("deit", "torchvision_vit", "llama", "llama_gqa", "llama_gqa_eager", "qwen3", "opt", "gpt2", "qwen2_moe")
EXPECTED = {  # groups by kind, counted by hand from the architectures
    **dict.fromkeys(TRANSFORMERS, {"head": 2, "neuron": 2}),
    **dict.fromkeys(("torchvision_swin", "timm_swin"), {"head": 4, "neuron": 4}),
    "option_a_resnet20": {"channel": 12},
    "bottlenecks": {"channel": 15},
    "resnext": {"channel": 10},
    "vgg": {"channel": 3, "neuron": 2},
    "densenet": {"channel": 12},
    "mobilenet_v2": {"channel": 24},
    "efficientnet": {"channel": 9},
    "convnext": {"channel": 2, "neuron": 4},
    "bert": {"head": 2, "neuron": 3},
    "segformer": {"head": 3, "neuron": 8, "channel": 1},
    "efficientnet_b0_timm": {"channel": 40},
    "convnext_tiny_timm": {"channel": 4, "neuron": 18},
    "deeplabv3": {"channel": 21},
    "faster_rcnn": {"channel": 15, "neuron": 2},
    "ssdlite": {"channel": 34},
}
FAMILIES = [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in EXPECTED]


def without_normed_channels(name: str) -> FoundGroups:
    """Return the groups without ConvNeXt's channels, whose norms prevent a comparison with zeros."""
    found = found_in(name)
    return replace(found, groups=tuple(g for g in found.groups if not ("convnext" in name and g.kind == "channel")))


@pytest.mark.parametrize("name", FAMILIES)
def test_all_groups_of_a_family_are_found(name: str) -> None:
    """With names of their own, and tensors that make every unit and read it."""
    groups = found_in(name).groups
    assert Counter(group.kind for group in groups) == EXPECTED[name]
    assert len({(group.kind, group.name) for group in groups}) == len(groups)
    for group in groups:
        assert {part.makes for part in group.slices} == {True, False}
        assert group.size > 1


@pytest.mark.parametrize("name", ["densenet", "torchvision_swin", "qwen2_moe"])
def test_trials_with_weights_cut_when_used_find_the_same_groups(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = found_in(name)
    monkeypatch.setattr(when_used, "LARGE", 0)
    assert find_groups(*built(name)).groups == wanted.groups


@pytest.mark.parametrize("name", one_in(4, FAMILIES))
def test_sliced_equals_masked(name: str) -> None:
    (model, inputs), found = built(name), without_normed_channels(name)
    keep = thirty_percent(found)
    with torch.no_grad():
        dense = outputs(model, inputs)
        sliced = outputs(narrowed(model, found, keep), inputs)
        zeroed = outputs(masked(model, found, keep), inputs)
    assert_equal(sliced, zeroed)
    pairs = zip(sliced, dense, strict=False)
    assert any(a.shape != b.shape or (a - b).abs().max() > 1e-3 * b.abs().max() for a, b in pairs)


@pytest.mark.parametrize("name", one_in(4, [name for name in FAMILIES if name != "densenet"]))
def test_sliced_equals_silenced_where_units_are_seen(name: str) -> None:
    """Not in a DenseNet, where norms after concatenations add to zeros."""
    (model, inputs), found = built(name), without_normed_channels(name)
    keep = {group: units for group, units in thirty_percent(found).items() if group.taps}
    whole = rewritten(model, found)
    with torch.no_grad(), silenced(whole, keep):
        hushed = outputs(whole, inputs)
    with torch.no_grad():
        assert_equal(outputs(narrowed(model, found, keep), inputs), hushed)


@pytest.mark.parametrize("name", ["timm_swin", "bert", "llama_gqa"])
def test_products_and_layers_add_up_to_all_macs(name: str) -> None:
    (model, inputs), found = built(name), found_in(name)
    by_module = macs_by_module(model, inputs)
    layers = [n for path, n in by_module.items() if not list(model.get_submodule(path).children())]
    products = as_inputs(inputs).n_samples * sum(group.products * group.size for group in found.groups)
    assert products > 0
    assert products + sum(layers) == count_macs(model, inputs)


def test_copies_of_models_that_have_run_still_capture_hidden_states() -> None:
    """Transformers installs hooks for hidden states once, and a copy starts without hooks."""
    model, inputs = tiny_llama(), tiny_inputs("llama")
    states = model(**inputs, output_hidden_states=True).hidden_states
    again = share_copy(model)(**inputs, output_hidden_states=True).hidden_states
    assert len(again) == len(states) == 5
    assert all(torch.equal(a, b) for a, b in zip(again, states, strict=True))


def test_units_without_a_place_for_gates_stay_out_of_the_plan_unless_all_are() -> None:
    first, second = separable_groups()
    hidden = replace(first, taps=())
    with pytest.warns(UserWarning, match=rf"{first.name} stay as they are: their units have no place where"):
        assert with_a_gate([hidden, second]) == (second,)
    assert with_a_gate((hidden, replace(second, taps=()))) == (hidden, replace(second, taps=()))


IDS = torch.randint(1, 60, (4, 9), generator=torch.Generator().manual_seed(0))
TEXT = {"input_ids": IDS, "decoder_input_ids": IDS}


def t5(heads: int) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_decoder_layers": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, num_heads=heads)).eval()


@pytest.mark.slow
@pytest.mark.parametrize("heads", [2, 3])
def test_attentions_that_share_a_position_bias_are_one_group_and_plans_of_few_heads_run(heads: int) -> None:
    """Cross-attentions add a tensor of zeros, made by the first with its own number of heads."""
    model = t5(heads)
    groups = find_groups(model, TEXT, ("head",)).groups
    (crossing,) = (group for group in groups if "EncDec" in group.name)
    assert {part.tensor.split(".")[2] for part in crossing.slices} == {"0", "1"}  # both blocks
    assert len(groups) == 3
    settings: Any = {"importance": "magnitude", "replace": "zero"}
    apply_plan(model, plan_width(model, Budget(ratio={"head": 0.4}), batches=[TEXT], **settings))
    assert model(**TEXT).logits.isfinite().all()
