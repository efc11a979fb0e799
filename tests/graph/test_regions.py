"""Attentions and heads, known by structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.depth.architectures import ARCHITECTURES
from cases.depth.hand_made import Detector
from cases.depth.removal import removals_of
from cases.detection.networks import tiny_detr, tiny_rtdetr
from torch import Tensor, nn

from prunerecover.graph.regions import find_attentions, head_layers
from prunerecover.graph.trace import trace_graph
from prunerecover.model.batches import as_inputs
from prunerecover.recipes.networks.detectors.build import detector_of


@pytest.mark.parametrize(("name", "layers"), [("llama", 3), ("mixtral", 2)])
def test_attentions_of_a_decoder_are_its_modules_and_experts_are_none(name: str, layers: int) -> None:
    model, batch = ARCHITECTURES[name]()
    found = [attention.module for attention in find_attentions(trace_graph(model, as_inputs(batch)))]
    assert found == [f"model.layers.{i}.self_attn" for i in range(layers)]


class Products(nn.Module):
    """Attention in the style of detectors: convolutions make queries, keys and values, and `@` multiplies."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.place = nn.Conv2d(8, 16, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, 1, 1, groups=8)

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        q, k, v = self.qkv(x).view(b, 2, 8, h * w).split([2, 2, 4], dim=2)
        mixed = (v @ (q.transpose(-2, -1) @ k).softmax(-1).transpose(-2, -1)).view(b, 8, h, w)
        return self.proj(mixed + self.place(v.reshape(b, 8, h, w)))


class WithProducts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.attn = nn.Conv2d(3, 8, 1), Products()
        self.fc = nn.Sequential(nn.Conv2d(8, 16, 1), nn.SiLU(), nn.Conv2d(16, 8, 1))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.attn(x)
        x = x + self.fc(x)
        return self.head(x.mean((2, 3)))


def test_layers_of_an_attention_are_not_offered_and_say_why() -> None:
    removals = removals_of(WithProducts(), torch.rand(1, 3, 4, 4))
    assert [unit.name for unit in removals.units] == ["stem", "attn", "fc", "fc.0", "fc.2"]
    for layer in ("attn.qkv", "attn.proj", "attn.place"):
        assert removals.refused[layer].startswith("it is part of the attention 'attn'; ")


def encoder_of(norm_first: bool) -> nn.Sequential:
    blocks = (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first) for _ in range(3))
    return nn.Sequential(*blocks)


@pytest.mark.parametrize("norm_first", [True, False])
def test_layers_before_an_attention_that_projects_in_itself_are_offered(norm_first: bool) -> None:
    """Without a mask, `nn.MultiheadAttention` is a single node with its projections inside."""
    network = nn.Sequential(*encoder_of(norm_first), nn.Linear(8, 2))
    removals = removals_of(network, torch.rand(2, 5, 8), ("layer",))
    assert [unit.name for unit in removals.units] == ["0.linear2", "1.linear2", "2.linear2"]


def head_of(model: nn.Module, batch: Any) -> list[str]:
    graph = trace_graph(model.eval(), as_inputs(batch))
    return sorted({graph.nodes[index].module for index in head_layers(graph)})


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x[:, :4]) @ self.two(x[:, 4:]).T


def backbone() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1))


BOXES = [f"model.bbox_predictor.layers.{i}" for i in range(3)]
HEADS: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], list[str]]] = {
    "the last layer of a classifier": (ARCHITECTURES["resnet18"], ["fc"]),
    "two side by side": (ARCHITECTURES["two inputs"], ["label", "score"]),
    "the layer that makes features": (lambda: (backbone(), torch.rand(1, 3, 4, 4)), ["4"]),
    "ends of towers": (lambda: (Towers(), torch.rand(3, 8)), ["one.2", "two.2"]),
    "all layers of boxes": (
        lambda: (detector_of(tiny_detr()), torch.rand(1, 3, 64, 64)),
        [*BOXES, "model.class_labels_classifier"],
    ),
}


@pytest.mark.parametrize("what", HEADS)
def test_heads_are_the_layers_behind_which_nothing_else_computes(what: str) -> None:
    network, layers = HEADS[what]
    assert head_of(*network()) == layers


def test_head_of_a_detector_is_the_module_that_makes_all_its_outputs() -> None:
    heads = head_of(Detector(), torch.rand(1, 3, 32, 32))
    assert len(heads) == 8
    assert all(path.startswith("detect.") for path in heads)


def test_heads_whose_boxes_others_refine_are_in_the_head() -> None:
    """RT-DETR's first boxes and those of its first decoder layer feed the later layers; the decoder may be removed."""
    found = set(head_of(detector_of(tiny_rtdetr(), 64), torch.rand(1, 3, 64, 64)))
    heads = [f"model.model.{path}" for path in ("enc_bbox_head", "decoder.bbox_embed.0", "decoder.bbox_embed.1")]
    assert found == {f"{head}.layers.{i}" for head in heads for i in range(3)} | {
        f"model.model.decoder.class_embed.{i}" for i in range(2)
    }


class EarlyOutput(nn.Module):
    """Trunk with an output in the middle, and another at the end."""

    def __init__(self, *late: nn.Module) -> None:
        super().__init__()
        self.trunk = nn.Sequential(*(nn.Conv2d(4, 4, 1) for _ in range(4)))
        self.early, self.late = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1)), nn.Sequential(*late)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(x)
        return self.early(x), self.late(x)


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


@pytest.mark.parametrize(
    "trunk", [nn.Conv2d(4, 4, 2, 2), Residual(nn.Conv2d(4, 4, 1)), nn.Sequential(*[nn.Conv2d(4, 4, 1)] * 9)]
)
def test_trunk_behind_an_early_output_is_no_head(trunk: nn.Module) -> None:
    model = EarlyOutput(trunk, nn.Conv2d(4, 2, 1))
    assert head_of(model, torch.rand(1, 4, 4, 4)) == ["early.0", "early.2", "late.1"]


@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_s_last_block_is_no_head(norm_first: bool) -> None:
    """Layers added to the stream keep it as it is when they go, with norms before and behind the sums."""
    encoder, batch = encoder_of(norm_first), torch.rand(2, 5, 8)
    assert head_of(encoder, batch) == []
    found = removals_of(encoder, batch, ("block", "mlp"))
    assert [[unit.name for unit in found.units if unit.kind == kind][-1][0] for kind in found.kinds] == ["2", "2"]
    assert head_of(nn.Sequential(encoder, nn.Linear(8, 8)), batch) == ["1"]
