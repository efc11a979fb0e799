"""Edits that give parameters new values, a tensor (`Refit`) or a map behind (`Fold`): exact, undone, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.engine import batch_of, build, output_of, unchanged
from torch import Tensor, nn
from torch.nn.utils import prune

from prunerecover.apply import apply_plan
from prunerecover.checkpoint.pruned_folder import load_pruned, save_pruned
from prunerecover.model.copies import share_copy
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Edit, Fold, Narrow, Refit
from prunerecover.plan.plan import Plan
from prunerecover.sites.find import find_groups
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.surgery.merging import merge_edits
from prunerecover.surgery.optimizer_update import update_optimizer
from prunerecover.surgery.provenance import plan_for
from prunerecover.width.groups.narrow_edits import narrow_edits

PLACES = {"llama": "model.layers.1.mlp.down_proj", "gpt2": "transformer.h.1.mlp.c_proj", "timm": "blocks.1.mlp.fc2"}
BLOCKS = {"llama": "model.layers.2", "gpt2": "transformer.h.2", "timm": "blocks.2"}
Values = dict[str, Tensor]


def fold(name: str) -> tuple[Fold, Values]:
    generator = torch.Generator().manual_seed(0)
    values = {"e0.weight": torch.randn(32, 32, generator=generator), "e0.bias": torch.randn(32, generator=generator)}
    keys = ("e0.weight",) if name == "llama" else ("e0.weight", "e0.bias")
    return Fold(unit=BLOCKS[name], into=PLACES[name], tensors=keys), {key: values[key] for key in keys}


def refit(name: str) -> tuple[Refit, Values]:
    generator = torch.Generator().manual_seed(0)
    own = dict(get_module(build(name), PLACES[name]).named_parameters())
    values = {f"e0.{key}": torch.randn(value.shape, generator=generator) for key, value in own.items()}
    return Refit(unit=PLACES[name], tensors=tuple(values)), values


both_edits = pytest.mark.parametrize("make", [fold, refit])


@pytest.mark.parametrize("name", PLACES)
def test_the_output_of_the_linear_goes_through_the_map(name: str) -> None:
    edit, tensors = fold(name)
    folded, by_hand = build(name), build(name)
    apply_edits(folded, [edit], tensors)
    get_module(by_hand, edit.into).register_forward_hook(
        lambda _, __, out: out @ tensors["e0.weight"].T + tensors.get("e0.bias", 0)
    )
    batch = batch_of(name)
    torch.testing.assert_close(output_of(folded, batch), output_of(by_hand, batch), rtol=1e-4, atol=1e-4)
    shapes = [{key: value.shape for key, value in model.named_parameters()} for model in (folded, by_hand)]
    assert shapes[0] == shapes[1]
    assert merge_edits(folded) == []


@pytest.mark.parametrize("name", PLACES)
def test_refitted_parameters_equal_values_that_are_set_by_hand(name: str) -> None:
    edit, tensors = refit(name)
    edited, by_hand = build(name), build(name)
    apply_edits(edited, [edit], tensors)
    for key, value in tensors.items():
        get_module(by_hand, edit.unit).get_parameter(key.rpartition(".")[2]).data.copy_(value)
    assert torch.equal(output_of(edited, batch_of(name)), output_of(by_hand, batch_of(name)))


@both_edits
@pytest.mark.parametrize("name", PLACES)
def test_they_are_undone_without_a_trace_and_kept_apart_from_copies(name: str, make: Any) -> None:
    model, (edit, tensors) = build(name), make(name)
    copied = share_copy(model)
    with unchanged(model):
        applied = apply_edits(copied, [edit], tensors)
    assert not torch.equal(output_of(copied, batch_of(name)), output_of(model, batch_of(name)))
    undo(copied, applied.journal)
    assert all(one is other for one, other in zip(copied.parameters(), model.parameters(), strict=True))


def test_half_precision_memory_format_and_frozen_weights_stay_so() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3)).to(torch.bfloat16, memory_format=torch.channels_last).requires_grad_(False)
    model, (edit, tensors) = build("llama").bfloat16().requires_grad_(False), fold("llama")
    apply_edits(net, [Refit(unit="0", tensors=("e0.weight",))], {"e0.weight": torch.randn(4, 3, 3, 3)})
    apply_edits(model, [edit], tensors)
    for weight in (net[0].weight, get_module(model, edit.into).get_parameter("weight")):
        assert (weight.dtype, weight.requires_grad) == (torch.bfloat16, False)
    assert net[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_a_tensor_under_several_names_stays_one() -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    net = nn.Sequential(first, second)
    apply_edits(net, [Refit(unit="1", tensors=("e0.weight",))], {"e0.weight": torch.eye(4)})
    assert net[0].weight is net[1].weight
    assert torch.equal(net(torch.ones(1, 4)), torch.ones(1, 4))


@both_edits
def test_the_optimizer_goes_on_with_place_and_state(make: Any) -> None:
    model, (edit, tensors) = build("llama"), make("llama")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(**batch_of("llama")).logits.square().mean().backward()
    optimizer.step()
    old = get_module(model, PLACES["llama"]).weight
    place = next(i for i, p in enumerate(model.parameters()) if p is old)
    momentum = optimizer.state[old]["momentum_buffer"]
    update_optimizer(optimizer, apply_edits(model, [edit], tensors))
    held = optimizer.param_groups[0]["params"]
    assert held[place] is get_module(model, PLACES["llama"]).weight
    assert len(held) == len(list(model.parameters()))
    assert torch.equal(optimizer.state[held[place]]["momentum_buffer"], momentum)


def test_a_plan_a_folder_and_a_sum_of_plans_keep_refitted_values(tmp_path: Path) -> None:
    model, batch = build("timm"), batch_of("timm")
    groups = find_groups(model, batch_of("timm", 1), "neuron")
    narrow = [*narrow_edits(groups, {group.name: torch.arange(8, group.size) for group in groups})]
    values = {"e4.weight": torch.randn(32, 8), "e4.bias": torch.randn(32)}
    edits: list[Edit] = [*narrow, Refit(unit=PLACES["timm"], tensors=tuple(values))]
    plan = plan_for(model, edits, method="by hand", tensors=values)
    again = Plan.load(plan.save(tmp_path / "plan.json"))
    assert again == plan
    assert set(again.needed_tensors) == set(plan.tensors)
    assert set(plan.removed) == {"neuron"}
    assert "refitted" in str(plan)
    apply_plan(model, again)
    edit = Refit(unit=PLACES["timm"], tensors=("e0.bias",))
    second = plan_for(model, [edit], method="by hand", tensors={"e0.bias": torch.randn(32)})
    total = plan + second
    apply_plan(model, second)
    by_sum = build("timm")
    apply_plan(by_sum, total)
    assert torch.equal(output_of(by_sum, batch), output_of(model, batch))
    opened = load_pruned(save_pruned(model, total, tmp_path / "pruned"), build("timm"))
    assert torch.equal(output_of(opened, batch), output_of(model, batch))


def shares(model: Any) -> None:
    model.model.layers[0].mlp.down_proj.weight = model.model.layers[1].mlp.down_proj.weight


def masks(model: Any) -> None:
    prune.l1_unstructured(get_module(model, PLACES["llama"]), "weight", 0.5)


def folded(name: str, **changes: Any) -> Fold:
    return fold(name)[0].model_copy(update=changes)


FC2, ATTENTION = PLACES["timm"], "blocks.1.attn"


@pytest.mark.parametrize(
    ("name", "prepare", "edit", "values", "message"),
    [
        (
            "llama",
            None,
            folded("llama", into="model.norm"),
            {},
            "Expected a linear at 'model.norm', to fold .* a Llama",
        ),
        (
            "llama",
            None,
            folded("llama"),
            {"e0.weight": torch.eye(8)},
            r"Expected the weight of a map of 32 channels for '.*down_proj', but got weight \(8, 8\)\. Does the",
        ),
        (
            "timm",
            None,
            folded("timm", tensors=("e0.weight",)),
            {},
            "Expected the weight and bias of a map of 32 channels for 'blocks.1.mlp.fc2'",
        ),
        ("llama", shares, folded("llama"), {}, "a weight of its own, to fold a map into, but 2 modules share it"),
        ("llama", masks, folded("llama"), {}, "Expected plain parameters to merge, but the weight of 'model.layers.1"),
        (
            "timm",
            None,
            Refit(unit=FC2, tensors=("e0.bias",)),
            {"e0.bias": torch.ones(3)},
            rf"shape \(32,\) for the bias of '{FC2}', but got \(3,\)",
        ),
        ("timm", None, Refit(unit=FC2, tensors=("e0.gain",)), {}, f"'{FC2}' .* hold gain itself, .* weight, bias"),
        ("timm", None, Refit(unit=ATTENTION, tensors=("e0.gain",)), {}, f"'{ATTENTION}' .* gain itself, .*no param"),
    ],
)
def test_edits_that_do_not_fit_are_refused(
    name: str, prepare: Callable[[nn.Module], None] | None, edit: Edit, values: Values, message: str
) -> None:
    model = build(name)
    if prepare is not None:
        prepare(model)
    with unchanged(model), pytest.raises(ValueError, match=message):
        apply_edits(model, [edit], {**fold(name)[1], **values})


def test_edits_without_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected one tensor for each parameter of 'a', but got e0.bias, e1.bias"):
        Refit(unit="a", tensors=("e0.bias", "e1.bias"))
    with pytest.raises(ValueError, match="Expected no refitted tensors for dimensions of heads of 'a', but"):
        Narrow(unit="a", kind="head_dim", of=3, keep=(0,), group=(), tensors=("e0.a.weight",))
