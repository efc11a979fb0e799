"""Merging: merged equals unmerged in all cases; hooks stay or are named, computed weights are refused."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import pytest
import torch
from cases.engine import UNGATED, UNLIKE, batch_of, build, output_of, unchanged
from cases.tiny_plans import tiny_plan
from torch import nn
from torch.nn.utils import parametrize, prune, spectral_norm, weight_norm

from prunerecover import apply_plan, merge
from prunerecover.families.describe import describe
from prunerecover.model.linears import matrix_and_bias
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Remove, Replace
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.merging import block_removals

KINDS = (("attn", "attention"), ("mlp", "mlp"))  # paths in a block of timm's, and kinds
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


def test_norm_affine_and_layer_scale_fold() -> None:
    model = build("timm_all")
    linearise(model, 1, "slope_bias")
    merge(model)
    block = model.blocks[1]
    assert block.norm2.weight is None
    assert isinstance(block.ls2, nn.Identity)
    assert isinstance(block.mlp.fc2, nn.Identity)


@pytest.mark.parametrize("name", UNLIKE)
def test_nothing_to_merge_leaves_the_model_alone(name: str) -> None:
    model = build(name)
    with unchanged(model):
        assert merge(model).edits == ()


@pytest.mark.parametrize("name", ["timm_all", "llama", "gpt2"])
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
    units = [(f"blocks.{i}.{path}", kind) for i in range(4) for path, kind in KINDS]
    apply_edits(model, [Remove(unit=unit, kind=kind) for unit, kind in units])
    before = output_of(model, batch_of("timm"))
    merge(model)
    assert len(model.blocks) == 1
    assert torch.equal(output_of(model, batch_of("timm")), before)


def test_block_that_doubles_its_input_stays() -> None:
    """Identity in the branch is x + x where the norm has no parameters: not an empty block."""
    from cases.models.tiny import tiny_timm

    model = tiny_timm(norm_layer=lambda dim, **_: nn.LayerNorm(dim, elementwise_affine=False))
    apply_edits(model, [Replace(unit=f"blocks.1.{p}", kind=k, leaves="identity") for p, k in KINDS])
    with unchanged(model):
        assert merge(model).edits == ()


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


@pytest.fixture
def linearised() -> nn.Module:
    model = build("timm")
    linearise(model, 1, "slope_bias")
    return model


@pytest.mark.parametrize(
    ("path", "how"),
    [
        ("norm2", "register_forward_hook"),
        ("mlp.fc1", "register_forward_pre_hook"),
        ("mlp.act", "register_forward_hook"),
        ("mlp.fc2", "register_full_backward_hook"),
    ],
)
def test_hooks_of_merged_modules_are_called_on_and_named(path: str, how: str, linearised: nn.Module) -> None:
    calls: list[str] = []
    handle = getattr(get_module(linearised, f"blocks.1.{path}"), how)(lambda *_: calls.append(path))
    with pytest.warns(UserWarning, match=rf"Hooks at blocks.1.{path} see other values .* Register them anew"):
        merge(linearised)
    linearised(batch_of("timm").requires_grad_()).sum().backward()
    assert calls == [path]
    handle.remove()
    linearised(batch_of("timm"))
    assert calls == [path]


def test_hooks_elsewhere_stay_without_a_word(linearised: nn.Module) -> None:
    calls: list[str] = []
    for path in ("blocks.1.attn", "blocks.2.mlp.fc1"):
        get_module(linearised, path).register_forward_hook(lambda *_, path=path: calls.append(path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge(linearised)
    linearised(batch_of("timm"))
    assert calls == ["blocks.1.attn", "blocks.2.mlp.fc1"]


def test_hooks_that_go_with_an_empty_block_are_named() -> None:
    model = build("timm")
    apply_plan(model, tiny_plan(model, (2, "attention", "zero"), (2, "mlp", "zero")))
    model.blocks[2].register_forward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match=r"Hooks at blocks.2 see other values from now on, or are not called"):
        merge(model)


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


COMPUTED: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "mask": (
        lambda m: prune.l1_unstructured(m, "weight", 0.3),
        r"a mask of torch.nn.utils.prune.*torch.nn.utils.prune.remove\(module, 'weight'\)",
    ),
    "mask of biases": (lambda m: prune.l1_unstructured(m, "bias", 0.3), r"a mask.*prune.remove\(module, 'bias'\)"),
    "weight norm": (weight_norm, r"weight_norm, .*torch.nn.utils.remove_weight_norm\(module, 'weight'\)"),
    "spectral norm": (spectral_norm, r"spectral_norm, .*remove_spectral_norm\(module, 'weight'\)"),
    "parametrization": (
        lambda m: parametrize.register_parametrization(m, "weight", Doubled()),
        r"a parametrization.*remove_parametrizations\(module, 'weight'\)",
    ),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize(("case", "path"), [("mask", "norm2"), *zip(COMPUTED, itertools.cycle(["mlp.fc1", "mlp.fc2"]))])
def test_computed_weights_are_refused_by_name(case: str, path: str, linearised: nn.Module) -> None:
    compute, message = COMPUTED[case]
    compute(get_module(linearised, f"blocks.1.{path}"))
    message = rf"plain parameters .*'blocks.1.{path}'.*{message}"
    with unchanged(linearised), pytest.raises(ValueError, match=message):
        merge(linearised)
