"""First-order importances and block influence against finite differences, loops and branch outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.models.decoders import DECODERS
from cases.models.hand_made_groups import cross_entropy, images, resnet_groups, small_resnet, vit_groups
from cases.models.tiny import tiny_inputs
from cases.width.scores import Batch, context, same
from torch import Tensor, nn

from prunerecover import find_units
from prunerecover.importance.context import DepthContext
from prunerecover.importance.first_order import gate_taylor, r_score
from prunerecover.importance.turned_stream import block_influence
from prunerecover.model.hooks import recording
from prunerecover.plan.groups import Group


def test_r_equals_the_finite_difference_of_shrinking_a_unit() -> None:
    """d/dt of the mean loss with the unit's weights times 1 - t."""
    model, batches = small_resnet().double(), [(x.double(), y) for x, y in images()]
    groups = resnet_groups(model)
    scores = r_score(context(model, groups, batches, cross_entropy))
    tensors = dict(model.named_parameters())
    step = 2**-16
    for group in groups:
        for unit in (0, group.size - 1):
            ends = []
            for factor in (1 - step, 1 + step):
                changed = copy.deepcopy(model)
                with torch.no_grad():
                    for part in group.slices:
                        if part.makes and part.tensor in tensors:
                            changed.get_parameter(part.tensor)[unit] *= factor
                    ends.append(sum(len(b[1]) * cross_entropy(changed, b).item() for b in batches) / 24)
            assert scores[group.name][unit].item() == pytest.approx(abs(ends[1] - ends[0]) / (2 * step), rel=1e-3)


@pytest.mark.parametrize("score", [r_score, gate_taylor])
def test_first_order_scores_do_not_depend_on_how_samples_are_batched(score: Callable[..., Any]) -> None:
    model = small_resnet()
    groups = resnet_groups(model)
    found = [score(context(model, groups, images(batch=n), cross_entropy)) for n in (24, 7, 1)]
    assert same(found[1], found[0], rel=1e-3)
    assert same(found[2], found[0], rel=1e-3)


def gate_taylor_by_loop(model: nn.Module, group: Group, batches: list[Batch]) -> Tensor:
    """Return scores from a backward pass per sample, with outputs kept by hooks; layers must not overwrite them."""
    total = torch.zeros(group.size, dtype=torch.float64)
    count = 0
    for pixels, labels in batches:
        for x, y in zip(pixels, labels, strict=True):
            for tap in group.taps:
                kept: list[Tensor] = []
                module = model.get_submodule(tap.module)
                if tap.of == "output":
                    handle = module.register_forward_hook(lambda _, __, output, kept=kept: kept.append(output))
                else:
                    handle = module.register_forward_pre_hook(lambda _, args, kept=kept: kept.append(args[0]))
                loss = cross_entropy(model, (x[None], y[None]))
                handle.remove()
                (gradient,) = torch.autograd.grad(loss, kept[0])
                effect = (kept[0] * gradient).detach()[0].transpose(0, tap.dim if tap.dim < 0 else 0)
                channels = effect.flatten(1).sum(1).view(group.size, tap.span).double()
                total += channels.abs().sum(1) if group.kind == "head" else channels.sum(1).abs()
            count += 1
    return total / count


def out_of_place(model: nn.Module) -> nn.Module:
    changed = copy.deepcopy(model)
    for module in changed.modules():
        if hasattr(module, "inplace"):
            module.inplace = False
    return changed


@pytest.mark.parametrize("act", [nn.ReLU, nn.SiLU])
def test_gate_taylor_equals_one_backward_pass_per_sample(act: type[nn.Module]) -> None:
    """Also where the next layer writes into the output."""
    model, batches = small_resnet(act=act), images(10)
    scores = gate_taylor(context(model, resnet_groups(model), batches, cross_entropy))
    for group in resnet_groups(model):
        expected = gate_taylor_by_loop(out_of_place(model), group, batches)
        assert torch.allclose(scores[group.name], expected, rtol=1e-3, atol=1e-12)


def test_gate_taylor_of_heads_and_neurons(make_vit: Callable[..., nn.Module]) -> None:
    model, batches = make_vit(), images(10, channels=1)
    groups = vit_groups(model)
    scores = gate_taylor(context(model, groups, batches, cross_entropy))
    for group in groups[:2]:
        expected = gate_taylor_by_loop(model, group, batches)
        assert torch.allclose(scores[group.name], expected, rtol=1e-3, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "norm", "attention", "factor"),
    [
        ("granite", "input_layernorm", "self_attn", 0.3),
        ("phi", "input_layernorm", "self_attn", 1.0),
        ("olmo2", "self_attn", "post_attention_layernorm", 1.0),
    ],
)
@torch.no_grad()
def test_stream_before_and_after_an_attention(name: str, norm: str, attention: str, factor: float) -> None:
    model, inputs = DECODERS[name].build(), tiny_inputs("text")
    layer = model.get_submodule("model.layers.1")
    with recording({"first": layer.get_submodule(norm), "last": layer.get_submodule(attention)}) as seen:
        model(**inputs)
    before = seen["first.in"]
    cosine = torch.cosine_similarity(before, before + factor * seen["last.out"], dim=-1)
    units = find_units(model, kinds=("attention",))
    found = block_influence(DepthContext(model=model, units=units, batches=(inputs,)))
    assert found["model.layers.1.self_attn"] == pytest.approx(float(1 - cosine.mean()), abs=1e-5)
