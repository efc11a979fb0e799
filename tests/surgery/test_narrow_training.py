"""Narrowed models train on like masked ones; width and depth compose in a single plan, in either order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.width.masks import built, maps
from cases.width.narrow import CASES, first_conv, head_edit, images, neuron_edit, second_conv, stirred_vit, vit
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import find_units, merge, plan_depth, update_optimizer
from prunerecover.apply import apply_plan
from prunerecover.plan.edits import Edit, Merge, Remove, Replace
from prunerecover.plan.groups import Slice
from prunerecover.plan.removed_units import removed_units
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.surgery.provenance import plan_for


def mask_of(applied: Any, dense: nn.Module) -> dict[str, Tensor]:
    """Return ones at the remaining entries of the dense model."""
    masks = {name: torch.zeros_like(p) for name, p in dense.named_parameters()}
    for name, (new, _) in applied.added.items():
        index: Any = [torch.arange(size) for size in masks[name].shape]
        for cut in applied.cuts[new][1]:
            index[cut.dim] = index[cut.dim][cut.kept]
        masks[name][torch.meshgrid(*index, indexing="ij")] = 1
    return {name: mask if name in applied.added else torch.ones_like(mask) for name, mask in masks.items()}


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, mask: dict[str, Tensor] | None = None
) -> None:
    generator = torch.Generator().manual_seed(steps)
    for _ in range(steps):
        x = torch.randn(4, 3, 8, 8, generator=generator).double()
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.randint(0, 5, (4,), generator=generator)).backward()
        optimizer.step()
        if mask is not None:
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.mul_(mask[name])


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01, eps=1e-4),  # else it enlarges noise: a bias before BatchNorm
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_on_equals_training_a_masked_model(name: str) -> None:
    """Removed entries zeroed with their gradients, and everything else unchanged: momentum, moments, steps."""
    narrowed, dense = (CASES["convolution"].build().train() for _ in range(2))
    ours, theirs = (OPTIMIZERS[name](m.parameters()) for m in (narrowed, dense))
    train(narrowed, ours, 3)
    train(dense, theirs, 3)
    applied = apply_edits(narrowed, [first_conv((1,)), first_conv((3, 4), of=7), second_conv()])
    update_optimizer(ours, applied)
    mask = mask_of(applied, dense)
    assert set(applied.cuts) == {new for new, _ in applied.added.values()}
    with torch.no_grad():
        for key, p in dense.named_parameters():
            p.mul_(mask[key])
    train(narrowed, ours, 4)
    train(dense, theirs, 4, mask)
    kept = [p[mask[key].bool()].view(narrowed.get_parameter(key).shape) for key, p in dense.named_parameters()]
    for expected, p in zip(kept, narrowed.parameters(), strict=True):
        assert torch.allclose(p, expected, rtol=1e-8, atol=1e-10)


def test_narrowed_parameters_keep_their_place_and_name_in_the_groups() -> None:
    model = CASES["convolution"].build()
    optimizer = torch.optim.Adam([
        {"params": [("a", model.head.weight), ("b", model.conv1.weight), ("c", model.bn2.bias)]},
        {"params": [(n, p) for n, p in model.conv2.named_parameters()]},
    ])  # fmt: skip
    update_optimizer(optimizer, apply_edits(model, [first_conv(), second_conv()]))
    held = [group["params"] for group in optimizer.param_groups]
    expected = [[model.head.weight, model.conv1.weight, model.bn2.bias], [model.conv2.weight]]
    assert all(a is b for x, y in zip(held, expected, strict=True) for a, b in zip(x, y, strict=True))
    assert [group["param_names"] for group in optimizer.param_groups] == [["a", "b", "c"], ["weight"]]
    assert not optimizer.state


def test_a_bias_that_takes_something_over_keeps_its_place_and_state() -> None:
    model = CASES["convolution"].build().train()
    optimizer = torch.optim.Adam([
        {"params": [model.head.bias, model.head.weight]},
        {"params": [p for name, p in model.named_parameters() if not name.startswith("head")]},
    ])  # fmt: skip
    train(model, optimizer, 2)
    before, state = model.head.bias.detach().clone(), dict(optimizer.state[model.head.bias])
    values = {"e0.head.weight": torch.ones(2, 5)}  # two removed channels, from four kept ones and a constant
    edit = second_conv().model_copy(update={"tensors": tuple(values)})
    update_optimizer(optimizer, apply_edits(model, [edit], values))
    assert not torch.equal(model.head.bias, before)
    assert optimizer.param_groups[0]["params"][0] is model.head.bias
    found = optimizer.state[model.head.bias]
    assert set(found) == set(state) == {"step", "exp_avg", "exp_avg_sq"}
    assert all(torch.equal(found[name], value) for name, value in state.items())


def test_state_of_another_shape_is_dropped_and_training_goes_on() -> None:
    model = CASES["convolution"].build().train()
    optimizer = torch.optim.Adafactor(model.parameters(), 0.01)
    train(model, optimizer, 2)
    untouched = optimizer.state[model.head.bias]
    applied = apply_edits(model, [first_conv()])
    old = {name: optimizer.state[p] for name, p in applied.removed.items()}
    update_optimizer(optimizer, applied)
    assert model.conv2.weight not in optimizer.state
    assert optimizer.state[model.head.bias] is untouched
    gain = optimizer.state[model.bn1.weight]
    assert torch.equal(gain["variance"], old["bn1.weight"]["variance"][[0, 2, 3, 6, 7]])
    assert gain["step"] == old["bn1.weight"]["step"]
    train(model, optimizer, 2)
    assert set(optimizer.state) == set(model.parameters())


def test_what_replaces_a_narrowed_unit_joins_without_a_state() -> None:
    """A fitted replacement has no former entries, although it joins the group of the former bias."""
    model = built(vit)()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(maps()[:, :1]).sum().backward()
    optimizer.step()
    before = dict(model.named_parameters())
    values = {"e0.slope": torch.rand(64), "e0.bias": torch.rand(64)}
    act = Slice(tensor="blocks.1.mlp.act.slope", dim=0), Slice(tensor="blocks.1.mlp.act.bias", dim=0)
    neurons = neuron_edit()
    edits: list[Edit] = [
        Replace(unit="blocks.1.mlp.act", kind="activation", leaves="slope_bias", tensors=tuple(values)),
        neurons.model_copy(update={"group": (*neurons.group, *act)}),
    ]
    applied = apply_edits(model, edits, values)
    update_optimizer(optimizer, applied)
    forward = model.blocks[1].mlp
    assert applied.added["blocks.1.mlp.act.slope"][1] is before["blocks.1.mlp.fc1.bias"]
    assert torch.equal(forward.act.slope, values["e0.slope"][list(neurons.keep)].double())
    assert {forward.fc1.bias, forward.fc1.weight, forward.fc2.weight} == set(applied.cuts)
    assert forward.act.slope not in optimizer.state
    assert "momentum_buffer" in optimizer.state[forward.fc1.bias]
    held = optimizer.param_groups[0]["params"]
    assert len(held) == len(set(held))
    assert set(held) == set(model.parameters())


def test_depth_after_width() -> None:
    model, fresh = stirred_vit(), stirred_vit()
    first = plan_for(model, [e for b in range(3) for e in (head_edit(b, (b,)), neuron_edit(b))], method="test")
    apply_plan(model, first)
    units = {unit.name: unit for unit in find_units(model, batches=images(1))}
    assert units["blocks.0.attn"].params == sum(p.numel() for p in (*model.blocks[0].attn.parameters(),)) + 32
    second = plan_depth(
        model, remove={"attention": 1, "activation": 1, "block": 1}, batches=[images()], search="one_shot"
    )
    apply_plan(model, second)
    assert set((first + second).removed) == {"head", "neuron", "attention", "activation", "block"}
    both = first + second + merge(model)
    apply_plan(fresh, both)
    assert torch.equal(fresh(images()), model(images()))
    assert sum(p.numel() for p in fresh.parameters()) == both.result.params


def test_merged_equals_unmerged_on_a_narrowed_model() -> None:
    model = stirred_vit().double()
    apply_plan(model, plan_for(model, [head_edit(1, (0, 2)), neuron_edit(1)], method="test"))
    values = {"e0.slope": torch.rand(61), "e0.bias": torch.rand(61)}
    edit = Replace(unit="blocks.1.mlp.act", kind="activation", leaves="slope_bias", tensors=tuple(values))
    apply_edits(model, [edit], values)
    before = model(images().double())
    assert [type(e) for e in merge(model).edits] == [Merge]
    assert model.blocks[1].mlp.fc1.weight.shape == (16, 16)
    assert torch.allclose(model(images().double()), before, atol=1e-9)


def test_width_after_depth() -> None:
    model, fresh = stirred_vit(), stirred_vit()
    first = plan_for(
        model, [Remove(unit="blocks.0", kind="block"), Remove(unit="blocks.1.mlp", kind="mlp")], method="t"
    )
    apply_plan(model, first)
    second = plan_for(model, [head_edit(0, (1,)), neuron_edit(0), head_edit(1, (0,))], method="test")
    journal = apply_plan(model, second).journal
    apply_plan(fresh, first + second)
    assert torch.equal(fresh(images()), model(images()))
    names = [unit.name for unit in removed_units((first + second).edits)]
    assert {"blocks.1.attn[1]", "blocks.2.attn[0]"} <= set(names)
    undo(model, journal)
    expected = stirred_vit()
    apply_plan(expected, first)
    assert torch.equal(model(images()), expected(images()))
