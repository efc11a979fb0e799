"""Layers taken out one by one are the MLP, the attention or the block that they make up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product

import pytest
import torch
from cases.depth.architectures import ARCHITECTURES
from cases.depth.removal import outputs, removals_of, size
from cases.sampling import one_in
from torch import nn

from prunerecover import merge
from prunerecover.depth.layers.removals import Removals
from prunerecover.model.copies import deep_copy
from prunerecover.plan.edits import Remove
from prunerecover.surgery.apply_edits import apply_edits

MLP = ("gate_proj", "up_proj", "down_proj")
KINDS = ("attention", "layer")


def listed(name: str) -> Removals:
    return removals_of(*ARCHITECTURES[name](), KINDS)


@pytest.fixture(scope="module")
def llama() -> Removals:
    return listed("llama")


def without(removals: Removals, names: Sequence[str]) -> nn.Module:
    """A copy without some units, in this order, merged."""
    units = {unit.name: unit for unit in removals.units}
    model = deep_copy(removals.model)
    apply_edits(model, removals.edits([units[name] for name in names]))
    merge(model)
    return model.eval()


def removed(removals: Removals, *edits: Remove) -> nn.Module:
    model = deep_copy(removals.model)
    apply_edits(model, edits)
    merge(model)
    return model.eval()


def operations(model: nn.Module, removals: Removals) -> int:
    inputs = removals.example
    exported = torch.export.export(model, inputs.args, {**inputs.kwargs, "use_cache": False}, strict=False)
    return sum(node.op == "call_function" for node in exported.graph.nodes)


def check_same(one: nn.Module, other: nn.Module, removals: Removals) -> None:
    assert size(one) == size(other)
    with torch.no_grad():
        first, second = (outputs(model, removals.example)[0] for model in (one, other))
    torch.testing.assert_close(first, second, rtol=0, atol=1e-5)


WHOLE = {
    "mlp": (Remove(unit="model.layers.1.mlp", kind="mlp"), ()),
    "block": (Remove(unit="model.layers.1", kind="block"), ("model.layers.1.self_attn",)),
}


@pytest.mark.parametrize(("order", "whole"), one_in(5, product(permutations(MLP), WHOLE)))
def test_gate_up_and_down_are_the_mlp_or_the_whole_block(llama: Removals, order: Sequence[str], whole: str) -> None:
    remove, attention = WHOLE[whole]
    left = without(llama, [*(f"model.layers.1.mlp.{name}" for name in order), *attention])
    check_same(left, removed(llama, remove), llama)


@pytest.mark.slow
@pytest.mark.parametrize("whole", WHOLE)
def test_nothing_is_left_of_it_in_the_exported_network(llama: Removals, whole: str) -> None:
    remove, attention = WHOLE[whole]
    left = without(llama, [*(f"model.layers.1.mlp.{name}" for name in MLP), *attention])
    assert operations(left, llama) <= operations(removed(llama, remove), llama)


def test_all_layers_and_the_attention_of_a_vision_transformer_block_are_the_block() -> None:
    deit = listed("deit")
    left = without(deit, ["blocks.1.mlp.fc2", "blocks.1.attn", "blocks.1.mlp.fc1"])
    check_same(left, removed(deit, Remove(unit="blocks.1", kind="block")), deit)


@pytest.mark.slow
@pytest.mark.parametrize("convolutions", [("conv1", "conv2"), ("conv2", "conv1")])
def test_all_convolutions_of_a_residual_block_are_the_block(convolutions: tuple[str, ...]) -> None:
    resnet = listed("resnet18")
    left = without(resnet, [f"layer1.1.{conv}" for conv in convolutions])
    whole = deep_copy(resnet.model)
    whole.layer1[1] = nn.ReLU()  # of what is not negative: it does nothing
    check_same(left, whole.eval(), resnet)
