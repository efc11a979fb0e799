"""The cost model against the counters, on models that are really narrower."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from cases.models.hand_made_groups import (
    Separable,
    narrow_vit,
    narrower_resnet,
    reads,
    resnet_groups,
    separable_groups,
    small_resnet,
    vit_groups,
)
from cases.models.tiny import tiny_mixture
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from prunerecover.cost.macs import count_macs
from prunerecover.plan.groups import Group, Slice
from prunerecover.width.allocation.cost_model import Cost, cost_model


def counted(model: nn.Module, inputs: Tensor) -> Cost:
    return Cost(count_macs(model, inputs), sum(p.numel() for p in model.parameters()))


SMALL = small_resnet()
SMALL_COSTS = cost_model(SMALL, resnet_groups(SMALL), torch.zeros(1, 3, 8, 8))
COUNTS = st.fixed_dictionaries({g.name: st.integers(1, g.size) for g in resnet_groups(SMALL)})


@settings(max_examples=25, deadline=None)
@given(COUNTS)
def test_total_equals_the_resnet_with_fewer_channels(kept: dict[str, int]) -> None:
    assert SMALL_COSTS.total(kept) == counted(narrower_resnet(SMALL, kept, 1), torch.zeros(1, 3, 8, 8))


def test_full_cost_is_the_models_own_whatever_the_batch() -> None:
    assert SMALL_COSTS.full == SMALL_COSTS.total({}) == counted(SMALL, torch.zeros(1, 3, 8, 8))
    assert cost_model(SMALL, resnet_groups(SMALL), torch.zeros(5, 3, 8, 8)).full == SMALL_COSTS.full


@pytest.mark.parametrize("kept", [(1, 4), (5, 1)])
def test_depthwise_convolutions_and_flattened_maps(kept: tuple[int, int]) -> None:
    inputs = torch.zeros(1, 3, 8, 8)
    costs = cost_model(Separable(), separable_groups(), inputs)
    assert costs.total(dict(zip(("expand", "project"), kept, strict=True))) == counted(Separable(*kept), inputs)


@pytest.mark.parametrize(
    "kept", [{"blocks.0.attn.qkv": 1, "blocks.1.mlp.fc1": 7}, {"blocks.2.attn.qkv": 1, "blocks.2.mlp.fc1": 1}]
)
def test_heads_and_neurons_of_a_vit_on_any_device(make_vit: Callable[..., nn.Module], kept: dict[str, int]) -> None:
    model, inputs = make_vit(), torch.zeros(1, 1, 8, 8)
    costs = cost_model(model, vit_groups(model), inputs)
    assert cost_model(copy.deepcopy(model).to("meta"), vit_groups(model), inputs.to("meta")) == costs
    assert costs.total(kept) == counted(narrow_vit(copy.deepcopy(model), kept), inputs)


def test_a_fused_attention_module_keeps_its_products_apart() -> None:
    """`nn.MultiheadAttention` counts scores, values and both projections together."""
    tokens, width, heads = 5, 12, 3
    span = width // heads
    model = nn.TransformerEncoderLayer(width, heads, 16, batch_first=True)
    fused = {"dim": 0, "offsets": (0, width, 2 * width), "span": span}
    made = (Slice(tensor="self_attn.in_proj_weight", **fused), Slice(tensor="self_attn.in_proj_bias", **fused))
    read = Slice(tensor="self_attn.out_proj.weight", dim=1, span=span, makes=False)
    products = 2 * tokens * tokens * span
    group = Group("self_attn", "head", heads, (*made, read), products=products)
    costs = cost_model(model, [group], torch.zeros(1, tokens, width))
    saving = costs.saving("self_attn", {})
    assert saving == Cost(tokens * 4 * span * width + products, 4 * span * width + 3 * span)
    feed_forward = costs.full.macs - heads * saving.macs
    assert feed_forward == 2 * tokens * width * 16


def test_tied_weights_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(11, width), nn.Linear(width, 11, bias=False)
            self.head.weight = self.table.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.table(tokens))

    slices = (Slice(tensor="table.weight", dim=1), *reads("head"))
    costs = cost_model(Tied(6), [Group("table", "channel", 6, slices)], torch.zeros(1, 3, dtype=torch.long))
    assert costs.total({"table": 4}) == counted(Tied(4), torch.zeros(1, 3, dtype=torch.long))


def test_routed_experts_save_parameters_and_the_routers_macs() -> None:
    """A token visits two experts, whether there are six or four."""

    def mixture(experts: int, neurons: int = 12) -> nn.Module:
        return tiny_mixture("mixtral", num_hidden_layers=1, num_local_experts=experts, intermediate_size=neurons)

    path = "model.layers.0.mlp"
    fused = [f"{path}.experts.gate_up_proj", f"{path}.experts.down_proj", f"{path}.gate.weight"]
    experts = Group(f"{path}.gate", "expert", 6, tuple(Slice(tensor=name, dim=0) for name in fused))
    inside = (Slice(tensor=fused[0], dim=1, offsets=(0, 12)), Slice(tensor=fused[1], dim=2, makes=False))
    tokens = torch.arange(12)[None]
    costs = cost_model(mixture(6), [experts, Group(f"{path}.experts", "neuron", 12, inside)], tokens)
    narrow = mixture(4, 8)
    assert costs.total({f"{path}.gate": 4, f"{path}.experts": 8}) == counted(narrow, tokens)


@pytest.mark.parametrize(("name", "count"), [("conv1", 7), ("conv1", -1), ("other", 1)])
def test_impossible_counts_are_refused(name: str, count: int) -> None:
    with pytest.raises(ValueError, match=f"to keep between 0 and all .* but got {count} for '{name}'"):
        SMALL_COSTS.total({name: count})


def test_groups_of_another_model_are_refused() -> None:
    group = replace(resnet_groups(SMALL)[1], size=60)
    message = r"Expected 'conv1.weight' to have at least 60 entries along dimension 0.*shape \(6, 3, 3, 3\)"
    with pytest.raises(ValueError, match=message):
        cost_model(SMALL, [group], torch.zeros(1, 3, 8, 8))
