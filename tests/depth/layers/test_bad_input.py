"""Layers and examples that do not fit: each is told why, and the network stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatch
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from cases.depth.architectures import ARCHITECTURES, TOKENS
from cases.depth.hand_made import ByValue, Gated, LongInputs, Recurrent
from cases.depth.removal import removals_in, removals_of, size
from cases.models.decoders import tiny_minimax
from torch import nn

from prunerecover import Budget, find_units, plan_depth
from prunerecover.depth.layers.pruned_graph import NotRemovable


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


EXAMPLES: dict[str, Any] = {
    "another width": torch.rand(2, 9),
    "other keywords": {"pixels": torch.rand(2, 6)},
    "integers": torch.ones(2, 6, dtype=torch.long),
}


@pytest.mark.parametrize("case", EXAMPLES)
def test_example_that_the_network_cannot_run_is_explained(case: str) -> None:
    model = ByValue()
    before = values(model)
    message = "Expected batches that ByValue can be called with, but its forward pass raised"
    with pytest.raises(ValueError, match=message):
        find_units(model, EXAMPLES[case], ("layer",))
    assert all(torch.equal(tensor, before[name]) for name, tensor in values(model).items())
    assert model.training


HEAD = "it is in the head, which makes the outputs; "


@pytest.mark.parametrize(
    ("name", "path", "reason"),
    [
        ("shared", "twice:0", "it is called several times; "),
        ("shared", "extra", "the example does not call it; "),
        ("shared", "head", HEAD),
        ("two inputs", "score", HEAD),
        ("1-d", "up", "it is a transposed convolution; "),
        ("resnet18", "layer2.0.conv1", "it changes spatial dimensions; "),
        ("resnest", "layer2.0.conv2.conv", "it is grouped, and makes another number of channels than it reads; "),
        ("mixtral", "model.layers.0.mlp.gate", "MixtralTopKRouter is no linear or convolution; "),
        ("by value", "last", "Expected what goes with 'last' to be modules, or in code that can be rewritten"),
    ],
)
def test_layer_that_stays_says_why(name: str, path: str, reason: str) -> None:
    assert removals_in(name, ("layer",)).refused[path].startswith(reason)


def test_layers_of_a_branch_that_the_example_does_not_take_are_refused() -> None:
    reasons = removals_in("by value", ("layer",)).refused
    uncalled = [path for path, reason in reasons.items() if reason.startswith("the example does not call it; ")]
    assert uncalled in (["positive"], ["negative"])


def test_pruned_weights_are_refused() -> None:
    model = Gated()
    nn.utils.prune.random_unstructured(model.fc, "weight", 0.5)
    assert "its weight is computed" in removals_of(model, torch.rand(2, 3, 4), ("layer",)).refused["fc"]


def test_recurrent_weights_are_no_layers() -> None:
    names = [unit.name for unit in removals_of(Recurrent(), torch.rand(2, 3, 4), ("layer",)).units]
    assert names == ["embed", "fc", "after"]


@pytest.mark.parametrize(
    ("name", "path"), [("llama", "model.layers.0.self_attn"), ("llama", "nothing.here"), ("shared", "twice")]
)
def test_name_that_is_no_present_layer_called_once_is_explained(name: str, path: str) -> None:
    with pytest.raises(NotRemovable, match=f"Expected '{path}' to be a present layer that is called once"):
        removals_in(name, ("layer",)).after((path,))


def test_layer_is_removed_once() -> None:
    with pytest.raises(NotRemovable, match="Was it removed before?"):
        removals_in("detector", ("layer",)).after(("deep.1.0", "deep.1.0"))


def test_listing_leaves_the_network_and_its_classes_alone() -> None:
    model, batch = ARCHITECTURES["t5"]()
    getter, before = nn.Module.__getattr__, values(model)
    find_units(model, batch, ("layer", "attention", "block"))
    assert nn.Module.__getattr__ is getter
    assert all(torch.equal(tensor, before[name]) for name, tensor in values(model).items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


NO_UNITS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, str]] = {
    "a head alone": (partial(nn.Linear, 4, 4), torch.rand(8, 4), "'': it is in the head, which makes the outputs"),
    "control flow": (LongInputs, torch.rand(2, 3, 6), "'long': the example does not call it"),
    "inside an attention": (
        tiny_minimax,  # whose MLPs are experts
        TOKENS,
        "'model.layers.0.self_attn.q_proj': it is part of the attention 'model.layers.0.self_attn'",
    ),
}


@pytest.mark.parametrize("case", NO_UNITS)
def test_layers_that_are_asked_for_and_are_no_units_say_why(case: str) -> None:
    build, batch, reason = NO_UNITS[case]
    model = build()
    found = find_units(model, batch, "layer")
    assert found == ()
    assert reason in [f"'{path}': {why}".partition("; ")[0] for path, why in found.refused.items()]
    assert len(found.refused) > 1 or reason.partition(": ")[2] in str(found)  # long lists are told in short
    with pytest.raises(ValueError, match=f"units of kind layer that may go, but there is none .*{reason}"):
        plan_depth(model, remove={"layer": 1}, batches=[batch])


def test_example_that_takes_a_branch_shows_its_layers() -> None:
    assert [unit.name for unit in find_units(LongInputs(), torch.rand(2, 5, 6), "layer")] == ["long"]


def test_layers_inside_attentions_are_not_among_those_that_can_be_asked_for() -> None:
    model, batch = ARCHITECTURES["llama"]()
    with pytest.raises(ValueError, match="Expected at most 9 units of kind 'layer' to remove, but got 10"):  # 3 of 7
        plan_depth(model, remove={"layer": 10}, batches=[batch])


@cache
def share_of_all_layers(ignore: tuple[str, ...]) -> float:
    """Return the share of the detector's parameters in the layers that may go."""
    model, batch = ARCHITECTURES["detector"]()
    names = [unit.name for unit in find_units(model, batch, "layer")]
    count = sum(not any(fnmatch(name, pattern) for pattern in ignore) for name in names)
    settings = {"batches": [batch], "kinds": "layer", "ignore": ignore, "importance": "magnitude"}
    return 1 - plan_depth(model, remove={"layer": count}, **settings).result.params / size(model)


@pytest.mark.parametrize(
    ("search", "ignore"), [("greedy", ()), ("one_shot", ("deep.0.*", "body.*")), ("rounds", ("deep.0.*", "body.*"))]
)
def test_budget_beyond_what_layers_hold_that_can_go_says_how_much_is_missing(search: str, ignore: Any) -> None:
    most, (model, batch) = share_of_all_layers(ignore), ARCHITECTURES["detector"]()
    assert 0 < most < 0.8
    importance = "output_divergence" if search == "greedy" else "magnitude"
    settings = {"batches": [batch], "kinds": "layer", "ignore": ignore, "importance": importance}
    with pytest.raises(ValueError, match=f"removed ones for {0.9 - most:.1%} of the cost more, but none is left that"):
        plan_depth(model, Budget(params=0.9), search=search, **settings)


def test_tokens_of_two_forms_give_the_same_units() -> None:
    model, _ = ARCHITECTURES["llama"]()
    assert find_units(model, TOKENS, ("layer",)) == find_units(model, {"input_ids": TOKENS}, ("layer",))


def test_not_all_blocks_of_a_supported_family_can_go() -> None:
    removals = removals_of(*ARCHITECTURES["deit"](), ("block",))
    assert not removals.why_not(removals.units[1:])
    assert "at least one block to stay" in removals.why_not(removals.units)
    with pytest.raises(NotRemovable, match="Expected at least one block to stay, but all 3 are to be removed"):
        removals.edits(removals.units)


BLOCKS: dict[str, tuple[str, dict[str, Any], str]] = {
    "more than all but one of each list": (
        "convnext_hf",
        {"remove": {"block": 5}},
        "of 'convnext.encoder.stages.0.layers', .* to stay, so that at most 4 of 8 blocks can go, but got 5",
    ),
    "all of a stage": (
        "convnext_hf",
        {"budget": Budget(params=0.9), "kinds": "block"},
        r"of 'convnext.encoder.stages.\d.layers' to stay, but all 2 would go",
    ),
}


@pytest.mark.parametrize("case", BLOCKS)
def test_one_block_of_each_list_stays(case: str) -> None:
    name, arguments, message = BLOCKS[case]
    model, batch = ARCHITECTURES[name]()
    before = values(model)
    with pytest.raises(ValueError, match=f"Expected at least one block {message}"):
        plan_depth(model, batches=[batch], **arguments)
    assert all(torch.equal(tensor, before[key]) for key, tensor in values(model).items())


@pytest.mark.slow
def test_all_blocks_that_can_go_do_where_others_of_their_list_cannot() -> None:
    model, batch = ARCHITECTURES["resnet50"]()  # the first block of each stage changes the shape
    units = removals_of(model, batch, ("block",)).units
    assert len(units) == 12
    plan = plan_depth(model, remove={"block": 12}, batches=[batch], importance="magnitude")
    assert set(plan.removed["block"]) == {unit.name for unit in units}


def test_what_stays_anyway_may_be_ignored_but_not_all() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    how = {"remove": {"layer": 1}, "batches": [torch.randn(8, 4)]}
    assert plan_depth(model, **how, ignore=["0", "4"]).removed == {"layer": ("2",)}
    with pytest.raises(ValueError, match=r"Expected units that may go, but all 2 of kind layer match ignore=\['\*'\]"):
        plan_depth(model, **how, ignore="*")
