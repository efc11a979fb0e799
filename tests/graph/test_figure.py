"""The picture of a computation graph shows the layers of the pruned network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.depth.architectures import ARCHITECTURES
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from torch import nn
from torch.nn.modules.conv import _ConvNd

from prunerecover import apply_plan, plan_depth, trace_graph
from prunerecover.display.style import BLUE
from prunerecover.graph.computation_graph import drawn_layers
from prunerecover.plan.plan import Plan


def outputs_by_layer(model: nn.Module) -> dict[str, int]:
    """How many channels or features each linear and convolution makes."""
    layers = {path: m for path, m in model.named_modules() if isinstance(m, nn.Linear | _ConvNd)}
    return {path: m.weight.shape[1 if getattr(m, "transposed", False) else 0] for path, m in layers.items()}


def planned(name: str, **remove: int) -> tuple[nn.Module, Any, Plan]:
    model, batch = ARCHITECTURES[name]()
    return model, batch, plan_depth(model, remove=remove, batches=[batch], importance="magnitude")


@pytest.mark.parametrize(("name", "remove"), [("unet", {"layer": 5}), ("gptj", {"mlp": 1})])
def test_layers_are_drawn_as_the_pruned_network_has_them(name: str, remove: dict[str, int]) -> None:
    model, batch, plan = planned(name, **remove)
    drawn = drawn_layers(trace_graph(model, batch), plan.edits)
    dense = outputs_by_layer(model)
    apply_plan(model, plan)
    left = outputs_by_layer(model)
    assert {layer.name for layer in drawn} >= dense.keys()
    for layer in drawn:
        went = layer.status in ("identity", "gone")
        assert went == (layer.name not in left)
        assert layer.width == dense[layer.name]
        if not went:
            assert layer.left == left[layer.name]
            assert (layer.status == "narrowed") == (layer.left < layer.width)
    assert {layer.name for layer in drawn if layer.status == "identity"} == set(plan.removed.get("layer", ()))


def test_layers_of_attentions_are_told_apart() -> None:
    model, batch = ARCHITECTURES["deit"]()
    drawn = drawn_layers(trace_graph(model, batch))
    assert {layer.name for layer in drawn if layer.status == "attention"} == {
        f"blocks.{i}.attn.{part}" for i in range(3) for part in ("qkv", "proj")
    }


def test_bars_stand_in_order_with_names_and_widths() -> None:
    model, batch, plan = planned("unet", layer=3)
    graph = trace_graph(model, batch)
    drawn, (axes,) = drawn_layers(graph, plan.edits), graph.plot(plan.edits).axes
    assert [text.get_text() for text in axes.texts] == [layer.name for layer in drawn]
    blue = {
        round(patch.get_x() + 0.38): patch.get_height()
        for patch in axes.patches
        if isinstance(patch, Rectangle) and to_hex(patch.get_facecolor()) == BLUE
    }
    assert blue.keys() == {x for x, layer in enumerate(drawn) if layer.status in ("kept", "narrowed")}
    whole = max(layer.width for layer in drawn) ** 0.5
    for x, height in blue.items():
        assert height == pytest.approx(drawn[x].width ** 0.5 / whole * drawn[x].left / drawn[x].width)
    assert not axes.axison


def test_network_without_layers_is_not_drawn() -> None:
    with pytest.raises(ValueError, match="Expected a network with layers to draw, but it has none"):
        trace_graph(nn.ReLU(), torch.rand(2, 3)).plot()
