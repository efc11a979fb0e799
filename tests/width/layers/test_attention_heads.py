"""Heads of PyTorch's own attention and of torchvision's Swin, in modules with removable heads."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.engine import unchanged
from cases.layers.attentions import (
    IMAGES,
    PADDING,
    TOKENS,
    Across,
    across,
    both,
    decoder,
    encoder,
    padded,
    seeded,
    targets,
    vision_transformer,
)
from cases.width.round_trip import ExportedRoundTripChecks, RoundTrip
from torch import Tensor, nn
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

from prunerecover import Budget, find_groups, plan_width
from prunerecover.plan.edits import FreeHeads
from prunerecover.surgery.apply_edits import apply_edits

HEADS = ("head",)
LABELS = torch.arange(16) % 3
BATCHES = [(torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(2)), LABELS)] * 2

V2 = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2}


def swin(**settings: object) -> nn.Module:
    """Return two stages of two blocks; windows cover the image in the second."""
    sizes = {"patch_size": [2, 2], "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": [4, 4]}
    return seeded(SwinTransformer(**sizes, num_classes=3, stochastic_depth_prob=0.0, **settings))


NETWORKS = {
    "ViT of torchvision": RoundTrip(vision_transformer, IMAGES, HEADS),
    "encoder": RoundTrip(encoder, TOKENS, HEADS),
    "encoder, padded": RoundTrip(encoder, padded(), HEADS),
    "encoder, length first": RoundTrip(lambda: encoder(False, norm_first=True), TOKENS.transpose(0, 1), HEADS),
    "decoder": RoundTrip(decoder, targets(), HEADS),
    "across": RoundTrip(across, both(), HEADS),
    "Swin": RoundTrip(swin, IMAGES, HEADS),
    "Swin V2": RoundTrip(lambda: swin(**V2), IMAGES, HEADS),
}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> RoundTrip:
    return NETWORKS[request.param]


class TestRoundTrip(ExportedRoundTripChecks):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("name", ["encoder", "Swin V2"])
def test_runs_in_onnxruntime(name: str, tmp_path: Path) -> None:
    NETWORKS[name].assert_in_onnx(tmp_path)


def test_finding_and_planning_leave_the_attention_as_it_is() -> None:
    model = vision_transformer()
    with unchanged(model):
        find_groups(model, IMAGES)
        plan_width(model, Budget(macs=0.2), batches=BATCHES)
    assert {type(m) for m in model.modules() if isinstance(m, nn.MultiheadAttention)} == {nn.MultiheadAttention}


@pytest.mark.parametrize("gradients", [True, False])
def test_kernel_for_whole_layers_is_not_used(gradients: bool) -> None:
    """The kernel assumes equal head sizes; PyTorch takes it in evaluation without gradients, also for padded tokens."""
    pruned = NETWORKS["encoder, padded"].pruned()
    with torch.set_grad_enabled(gradients):
        found = pruned(TOKENS, src_key_padding_mask=PADDING)
    reference = NETWORKS["encoder, padded"].pruned().train()
    for module in reference.modules():
        if isinstance(module, nn.Dropout | nn.MultiheadAttention):
            module.eval()
    for layer in reference.layers:
        layer.dropout1.p = layer.dropout2.p = layer.dropout.p = 0.0
    torch.testing.assert_close(found, reference(TOKENS, src_key_padding_mask=PADDING), atol=1e-5, rtol=1e-5)


def test_plan_scores_heads_and_lets_projections_take_over() -> None:
    model = vision_transformer()
    layer = "encoder.layers.encoder_layer_0.self_attention"
    model.get_parameter(f"{layer}.out_proj.weight").data[:, 4:8] *= 1e-3  # hardly read
    plan = plan_width(model, Budget(remove={"head": 1}), batches=BATCHES)
    assert plan.removed == {"head": (f"{layer}[1]",)}
    assert [edit.op for edit in plan.edits] == ["free_heads", "narrow"]
    assert plan.needed_tensors == (f"e1.{layer}.out_proj.weight",)


def test_rewriting_twice_is_refused() -> None:
    model = vision_transformer()
    edit = FreeHeads(unit="encoder.layers.encoder_layer_0.self_attention")
    apply_edits(model, [edit])
    with pytest.raises(ValueError, match="ShiftedWindowAttentionV2, but it is a NarrowAttention. Was the plan"):
        apply_edits(model, [edit])


class Own(nn.MultiheadAttention):
    """A subclass may compute with the size of its heads."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class Seen(Across):
    """Mean weights over heads are put out."""

    def forward(self, tokens: Tensor, others: Tensor) -> Any:
        return self.attention(tokens, others, others)


def test_heads_of_subclasses_and_heads_whose_mean_weights_are_put_out_stay() -> None:
    model = seeded(Across())
    model.attention = Own(16, 4, batch_first=True, kdim=12, vdim=12).eval()
    for network, kept in (
        (model, "What keeps them: 'attention' by a head size computed from"),
        (seeded(Seen()), "Operations that count units: mean in 'attention'"),
    ):
        with pytest.raises(ValueError, match=kept):
            find_groups(network, both(), HEADS)


def test_pruned_network_is_pickled() -> None:
    pruned = NETWORKS["encoder"].pruned()
    again = pickle.loads(pickle.dumps(pruned))
    assert torch.equal(again(TOKENS), pruned(TOKENS))
