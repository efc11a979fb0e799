"""Merging: merged equals unmerged, for every family and everything that folds."""

from __future__ import annotations

import pytest
import torch
from cases.engine import FAMILIES, UNGATED, batch_of, batches_of, build, output_of, unchanged
from torch import nn

from prunerecover.apply import apply_plan
from prunerecover.depth.plan_depth import plan_depth
from prunerecover.families.describe import describe
from prunerecover.model.linears import matrix_and_bias
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Remove, Replace
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.merging import block_removals, merge

TENSORS = {"slope_bias": ("slope", "bias"), "affine": ("weight", "bias"), "identity": ()}


def linearise(model: nn.Module, index: int, leaves: str) -> str:
    forward = describe(model).blocks[index].feed_forward
    assert forward is not None
    hidden = matrix_and_bias(get_module(model, forward.first))[0].shape[0]
    shapes = {"slope": (hidden,), "bias": (hidden,)} if leaves == "slope_bias" else {"weight": (32, 32), "bias": (32,)}
    values = {f"e0.{n}": torch.randn(shapes[n]) / 4 for n in TENSORS[leaves]}
    edit = Replace(unit=forward.activation, kind="activation", leaves=leaves, tensors=tuple(values))
    apply_edits(model, [edit], values)
    return forward.first


@pytest.mark.parametrize("leaves", TENSORS)
@pytest.mark.parametrize("name", UNGATED)
def test_merged_equals_unmerged(name: str, leaves: str) -> None:
    model = build(name)
    firsts = [linearise(model, index, leaves) for index in (0, 2, 3)]
    batch = batch_of(name)
    before, count = output_of(model, batch), sum(p.numel() for p in model.parameters())
    plan = merge(model)
    # Post-norm families have no norm to fold: an affine map in a single linear is merged already.
    assert len(plan.edits) == (3 if leaves != "affine" or describe(model).blocks[0].mlp.norm else 0)
    assert torch.allclose(output_of(model, batch), before, atol=2e-5)
    assert sum(p.numel() for p in model.parameters()) <= count
    for first in firsts:
        assert matrix_and_bias(get_module(model, first))[0].shape == (32, 32)


@pytest.mark.parametrize("name", UNGATED)
def test_merging_twice_changes_nothing(name: str) -> None:
    model = build(name)
    linearise(model, 1, "slope_bias")
    merge(model)
    with unchanged(model):
        assert merge(model).edits == ()


def test_norm_affine_and_layer_scale_fold() -> None:
    model = build("timm_all")
    linearise(model, 1, "slope_bias")
    merge(model)
    block = model.blocks[1]
    assert block.norm2.weight is None
    assert isinstance(block.ls2, nn.Identity)
    assert isinstance(block.mlp.fc2, nn.Identity)


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_to_merge_leaves_the_model_alone(name: str) -> None:
    model = build(name)
    with unchanged(model):
        assert merge(model).edits == ()


@pytest.mark.parametrize("name", ["timm", "timm_all", "llama", "gpt2", "opt", "hf_vit"])
def test_block_with_both_branches_gone_is_taken_out(name: str) -> None:
    model = build(name)
    block = describe(model).blocks[1]
    apply_edits(model, [Remove(unit=b.path, kind=b.kind) for b in (block.attention, block.mlp) if b is not None])
    before = output_of(model, batch_of(name))
    merge(model)
    assert len(describe(model).blocks) == 3
    assert torch.equal(output_of(model, batch_of(name)), before)


def test_one_of_several_empty_blocks_stays() -> None:
    model = build("timm")
    apply_edits(
        model,
        [Remove(unit=f"blocks.{i}.{p}", kind=k) for i in range(4) for p, k in (("attn", "attention"), ("mlp", "mlp"))],
    )
    before = output_of(model, batch_of("timm"))
    merge(model)
    assert len(model.blocks) == 1
    assert torch.equal(output_of(model, batch_of("timm")), before)


def test_block_that_doubles_its_input_stays() -> None:
    """Identity in the branch is x + x where the norm has no parameters: not an empty block."""
    from cases.models.tiny import tiny_timm

    model = tiny_timm(norm_layer=lambda dim, **_: nn.LayerNorm(dim, elementwise_affine=False))
    kinds = (("attn", "attention"), ("mlp", "mlp"))
    apply_edits(model, [Replace(unit=f"blocks.1.{p}", kind=k, leaves="identity") for p, k in kinds])
    with unchanged(model):
        assert merge(model).edits == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm", "bert"])
def test_merge_plan_replays_after_the_plan_it_followed(name: str) -> None:
    model, fresh, batch = build(name), build(name), batch_of(name)
    plan = plan_depth(model, remove={"activation": 2, "attention": 1}, batches=batches_of(name))
    apply_plan(model, plan)
    both = plan + merge(model)
    apply_plan(fresh, both)
    assert torch.equal(output_of(fresh, batch), output_of(model, batch))


def test_half_precision_merges_in_double() -> None:
    model = build("timm").bfloat16()
    linearise(model, 2, "slope_bias")
    mlp = model.blocks[2].mlp
    exact = matrix_and_bias(mlp.fc2)[0] @ (mlp.act.slope.double()[:, None] * matrix_and_bias(mlp.fc1)[0])
    exact = exact * model.blocks[2].norm2.weight.double()
    merge(model)
    assert torch.equal(mlp.fc1.weight, exact.bfloat16())


def test_all_blocks_cannot_be_taken_out() -> None:
    with pytest.raises(ValueError, match="at least one block to stay, but all 4 are to be removed"):
        block_removals(build("timm"), [0, 1, 2, 3])
