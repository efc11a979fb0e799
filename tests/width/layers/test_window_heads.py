"""Heads of torchvision's Swin, whose attentions become modules in which some can go."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cases.layers.attentions import IMAGES, seeded
from cases.width.round_trip import ExportedRoundTripChecks, RoundTrip
from torch import nn
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

from prunerecover import Budget, apply_plan, load_pruned, plan_width, save_pruned
from prunerecover.cost.macs import count_macs
from prunerecover.model.narrow.window_attention import NarrowWindowAttention

HEADS = ("head",)
BATCHES = [(torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(2)), torch.arange(16) % 3)]
V2 = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2}


def swin(**settings: object) -> nn.Module:
    """Two stages of two blocks; windows cover the image in the second one."""
    sizes = {"patch_size": [2, 2], "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": [4, 4]}
    return seeded(SwinTransformer(**sizes, num_classes=3, stochastic_depth_prob=0.0, **settings))


NETWORKS = {
    "Swin": RoundTrip(swin, IMAGES, HEADS),
    "Swin V2": RoundTrip(lambda: swin(**V2), IMAGES, HEADS),
}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> RoundTrip:
    return NETWORKS[request.param]


class TestRoundTrip(ExportedRoundTripChecks):
    pass


@pytest.mark.parametrize("name", NETWORKS)
def test_each_attention_is_a_group_of_heads(name: str) -> None:
    assert [group.size for group in NETWORKS[name].found.groups] == [2, 2, 4, 4]


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_runs_in_onnxruntime(name: str, tmp_path: Path) -> None:
    NETWORKS[name].assert_in_onnx(tmp_path)


@pytest.mark.parametrize("name", NETWORKS)
def test_plan_counts_what_is_left(name: str, tmp_path: Path) -> None:
    """What the plan says of parameters and MACs is what is there, also once it is loaded."""
    model = NETWORKS[name].build()
    plan = plan_width(model, Budget(remove={"head": 5}), batches=BATCHES)
    apply_plan(model, plan)
    assert plan.result.params == sum(p.numel() for p in model.parameters())
    assert plan.result.macs == count_macs(model, BATCHES[0][0][:1])
    assert any(isinstance(module, NarrowWindowAttention) for module in model.modules())
    save_pruned(model, plan, tmp_path / "pruned")
    again = load_pruned(tmp_path / "pruned", NETWORKS[name].build())
    assert torch.equal(again.eval()(IMAGES), model.eval()(IMAGES))


def test_a_dead_head_goes_first() -> None:
    model = swin()
    model.get_parameter("features.3.1.attn.proj.weight").data[:, 8:16] *= 1e-3  # head 1 is hardly read
    plan = plan_width(model, Budget(remove={"head": 1}), batches=BATCHES)
    assert plan.removed == {"head": ("features.3.1.attn.qkv[1]",)}
    assert [edit.op for edit in plan.edits] == ["free_heads", "narrow"]
