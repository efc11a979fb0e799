"""Descriptions of timm VisionTransformers: removing a branch equals a dense model with the branch zeroed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.models.tiny import VARIANTS, tiny_images, tiny_timm
from torch import Tensor, nn

from prunerecover.families.describe import describe
from prunerecover.families.layout import Branch
from prunerecover.model.paths import get_module, set_module
from prunerecover.model.replacements import Nothing

every_variant = pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
both_kinds = pytest.mark.parametrize("kind", ["attention", "mlp"])


def remove(model: nn.Module, branch: Branch) -> None:
    set_module(model, branch.path, Nothing(branch.returns))
    for path in branch.followers:
        set_module(model, path, nn.Identity())


def swiglu() -> nn.Module:
    from timm.layers import SwiGLU

    return tiny_timm(mlp_layer=SwiGLU)


def zero(block: nn.Module, kind: str) -> None:
    """Zero a branch of a dense block by a hook, without DropPath and its random numbers."""
    name, number = {"attention": ("attn", 1), "mlp": ("mlp", 2)}[kind]
    getattr(block, name).register_forward_hook(lambda _, __, output: torch.zeros_like(output))
    setattr(block, f"drop_path{number}", nn.Identity())


def run(model: nn.Module, seed: int = 7) -> tuple[Tensor, ...]:
    torch.manual_seed(seed)
    with torch.no_grad():
        out = model(tiny_images())
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@both_kinds
@every_variant
def test_removed_branch_equals_zeroed_branch(changes: dict[str, Any], kind: str, training: bool) -> None:
    dense, pruned, oracle = (tiny_timm(**changes).train(training) for _ in range(3))
    if changes.get("distilled"):
        pruned.set_distilled_training(True)
        oracle.set_distilled_training(True)
        dense.set_distilled_training(True)
    for index in (0, 2):
        block = describe(pruned).blocks[index]
        remove(pruned, getattr(block, kind))
        zero(get_module(oracle, block.path), kind)
    heads = run(pruned)
    assert len(heads) == (2 if changes.get("distilled") and training else 1)
    for ours, theirs, before in zip(heads, run(oracle), run(dense), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert (ours - before).abs().max() > 0.01


@both_kinds
def test_gated_mlp_says_why_and_its_branches_can_go(kind: str) -> None:
    pruned, oracle = swiglu(), swiglu()
    block = describe(pruned).blocks[1]
    assert block.feed_forward is None
    assert "gated (SwiGLU)" in block.no_activation
    remove(pruned, getattr(block, kind))
    zero(oracle.blocks[1], kind)
    torch.testing.assert_close(run(pruned)[0], run(oracle)[0])


def test_norm_between_the_linears_says_why() -> None:
    block = describe(tiny_timm(scale_mlp_norm=True)).blocks[0]
    assert block.feed_forward is None
    assert "norm between" in block.no_activation


def test_lookups_by_path() -> None:
    layout = describe(tiny_timm())
    assert layout.branch("blocks.2.attn") == layout.blocks[2].attention
    assert layout.branch("blocks.2.norm1") is None
    assert layout.feed_forward("blocks.2.mlp.act") == layout.blocks[2].feed_forward
    assert layout.feed_forward("blocks.2.mlp") is None
    assert layout.block_of("blocks.3.mlp.act") == 3
    with pytest.raises(ValueError, match="inside one of 4 blocks, but got 'head'"):
        layout.block_of("head")


def test_post_norm_blocks_are_not_supported() -> None:
    from timm.models.vision_transformer import ResPostBlock

    with pytest.raises(ValueError, match="supported family"):
        describe(tiny_timm(block_fn=ResPostBlock, init_values=None))
