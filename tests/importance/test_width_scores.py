"""Scores of width pruning against scipy, and loops over samples, with the model unchanged afterwards."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases.models.hand_made_groups import CLASSES, cross_entropy, images, resnet_groups, small_resnet, vit_groups
from cases.width.scores import Batch, computed, context, directions_of, largest_distance, perceptron, same
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from prunerecover.importance.first_order import gate_taylor, r_score
from prunerecover.importance.measuring.unit_slices import units_of
from prunerecover.importance.measuring.wasserstein import class_separation
from prunerecover.importance.u_score import u_score
from prunerecover.plan.groups import Group, Tap


def seen(model: nn.Module, batches: list[Batch], tap: Tap) -> Tensor:
    """Return the values at a tap, `(N, ...)`, by a plain hook."""
    module = model.get_submodule(tap.module)
    parts: list[Tensor] = []

    def keep(_: nn.Module, args: Any, output: Tensor) -> None:
        parts.append((output if tap.of == "output" else args[0]).detach().clone())

    handle = module.register_forward_hook(keep)
    with torch.no_grad():
        for batch in batches:
            model(batch[0])
    handle.remove()
    return torch.cat(parts)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(0, 99))
def test_separation_of_scalars_equals_scipy_for_any_class_sizes(sizes: list[int], seed: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    generator = torch.Generator().manual_seed(seed)
    labels = labels[torch.randperm(len(labels), generator=generator)]
    values = torch.randn(len(labels), 3, 1, dtype=torch.float64, generator=generator)
    expected = [largest_distance(values[:, unit], labels) for unit in range(3)]
    assert class_separation(values, labels).tolist() == pytest.approx(expected, rel=1e-12)


def test_u_of_scalars_equals_scipy() -> None:
    model, groups, batches = perceptron()
    outputs = seen(model, batches, groups[0].taps[0])
    labels = torch.cat([y for _, y in batches])
    expected = [largest_distance(outputs[:, [j]], labels) for j in range(5)]
    assert u_score(context(model, groups, batches))["first"].tolist() == pytest.approx(expected, rel=1e-12)


def test_u_of_maps_equals_scipy_along_the_same_directions() -> None:
    model, batches = small_resnet(), images()
    group = next(g for g in resnet_groups(model) if g.name == "layer1.0.conv1")
    maps = seen(model, batches, group.taps[0]).flatten(2)
    labels = torch.cat([y for _, y in batches])
    basis = directions_of(64, 128, seed=3)
    expected = [largest_distance(maps[:, c] @ basis.T, labels) for c in range(group.size)]
    assert u_score(context(model, [group], batches, seed=3))[group.name].tolist() == pytest.approx(expected, rel=1e-4)


def test_u_of_heads_is_that_of_tokens_times_head_dimension(make_vit: Callable[..., nn.Module]) -> None:
    model, batches = make_vit(), images(size=8, channels=1)
    group = vit_groups(model)[0]
    span = group.taps[0].span
    tokens = seen(model, batches, group.taps[0])
    labels = torch.cat([y for _, y in batches])
    basis = directions_of(tokens.shape[1] * span, 64, seed=0)
    heads = [tokens[:, :, h * span : (h + 1) * span].flatten(1) @ basis.T for h in range(group.size)]
    expected = [largest_distance(values, labels) for values in heads]
    assert u_score(context(model, [group], batches))[group.name].tolist() == pytest.approx(expected, rel=1e-4)


def test_u_of_several_sites_is_the_largest() -> None:
    model, batches = small_resnet(), images()
    group = resnet_groups(model)[1]
    assert len(group.taps) == 2
    alone = [u_score(context(model, [replace(group, taps=(tap,))], batches))[group.name] for tap in group.taps]
    assert torch.equal(u_score(context(model, [group], batches))[group.name], torch.maximum(*alone))


def test_u_in_several_passes_equals_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batches = small_resnet(), images()
    groups = resnet_groups(model)
    whole = computed(context(model, groups, batches, loss=cross_entropy), ["u_score", "gate_taylor"])
    monkeypatch.setattr("prunerecover.importance.u_score.PROJECTIONS", 4 * 128 * 24 * 12)
    runs = []
    handle = model.register_forward_hook(lambda *_: runs.append(1))
    parts = computed(context(model, groups, batches, loss=cross_entropy), ["u_score", "gate_taylor"])
    handle.remove()
    assert len(runs) > len(batches)
    assert same(parts["u_score"], whole["u_score"])
    assert same(parts["gate_taylor"], whole["gate_taylor"])


def test_u_with_a_number_per_class_equals_u_of_the_first_samples() -> None:
    model, batches = small_resnet(), images(48)
    groups = resnet_groups(model)
    pixels, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    first = torch.cat([(labels == c).nonzero().flatten()[:3] for c in range(CLASSES)]).sort().values
    assert same(
        u_score(context(model, groups, batches, per_class=3)),
        u_score(context(model, groups, [(pixels[first], labels[first])])),
        rel=1e-4,
    )


def test_labels_may_come_from_a_mapping_or_a_function() -> None:
    model, groups, batches = perceptron()
    expected = u_score(context(model, groups, batches))
    assert same(u_score(context(model, groups, [{"x": x, "label": y} for x, y in batches])), expected)
    label_of = {float(x[0, 0]): y for x, y in batches}
    assert same(
        u_score(context(model, groups, [x for x, _ in batches], labels=lambda x: label_of[float(x[0, 0])])), expected
    )


def test_rows_of_one_sample_are_parts_of_its_vector() -> None:
    """Windows: a tap with two rows per sample sees the same vector as a tap with both in a single row."""
    whole = torch.randn(6, 4, 3)
    rows = whole.view(6, 2, 2, 3).flatten(0, 1)
    tap = Tap("", dim=-1)
    assert torch.equal(units_of(rows, tap, 3, n=6), units_of(whole, tap, 3, n=6))


@pytest.mark.parametrize("score", [r_score, gate_taylor, u_score])
def test_scores_do_not_depend_on_how_samples_are_batched(score: Callable[..., Any]) -> None:
    model = small_resnet()
    groups = resnet_groups(model)
    whole, parts, single = (score(context(model, groups, images(batch=n), cross_entropy)) for n in (24, 7, 1))
    assert same(parts, whole, rel=1e-3)
    assert same(single, whole, rel=1e-3)


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
