"""Parameters with new values: exact, undone without a trace, kept apart from copies, and refused otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from cases.engine import batch_of, batches_of, build, output_of, unchanged
from torch import Tensor, nn

from prunerecover.apply import apply_plan, refit_plan
from prunerecover.checkpoint.pruned_folder import load_pruned, save_pruned
from prunerecover.divergence.registry import output_divergence
from prunerecover.model.copies import share_copy
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Edit, Narrow, Refit
from prunerecover.plan.plan import Plan
from prunerecover.sites.find import find_groups
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.optimizer_update import update_optimizer
from prunerecover.surgery.provenance import plan_for
from prunerecover.width.groups.narrow_edits import narrow_edits

PLACES = {"llama": "model.layers.1.mlp.down_proj", "gpt2": "transformer.h.1.mlp.c_proj", "timm": "blocks.1.mlp.fc2"}


def refit(name: str, number: int = 0) -> tuple[Refit, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(number)
    own = dict(get_module(build(name), PLACES[name]).named_parameters())
    values = {f"e{number}.{key}": torch.randn(value.shape, generator=generator) for key, value in own.items()}
    return Refit(unit=PLACES[name], tensors=tuple(values)), values


def neurons_gone(model: nn.Module, few: int = 8) -> list[Edit]:
    """Return edits that keep only the first neurons of all MLPs of a ViT."""
    groups = find_groups(model, batch_of("timm", 1), "neuron")
    return list(narrow_edits(groups, {group.name: torch.arange(few, group.size) for group in groups}))


@pytest.mark.parametrize("name", PLACES)
def test_it_equals_values_that_are_set_by_hand(name: str) -> None:
    edit, tensors = refit(name)
    edited, by_hand = build(name), build(name)
    apply_edits(edited, [edit], tensors)
    for key, value in tensors.items():
        get_module(by_hand, edit.unit).get_parameter(key.rpartition(".")[2]).data.copy_(value)
    assert torch.equal(output_of(edited, batch_of(name)), output_of(by_hand, batch_of(name)))


def test_a_copy_that_shares_tensors_keeps_its_values() -> None:
    model, (edit, tensors) = build("timm"), refit("timm")
    copied = share_copy(model)
    with unchanged(model):
        apply_edits(copied, [edit], tensors)
    assert not torch.equal(output_of(copied, batch_of("timm")), output_of(model, batch_of("timm")))


def test_half_precision_memory_format_and_frozen_weights_stay_so() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3)).to(torch.bfloat16, memory_format=torch.channels_last).requires_grad_(False)
    apply_edits(net, [Refit(unit="0", tensors=("e0.weight",))], {"e0.weight": torch.randn(4, 3, 3, 3)})
    weight = net[0].weight
    assert (weight.dtype, weight.requires_grad) == (torch.bfloat16, False)
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_a_tensor_under_several_names_stays_one() -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    net = nn.Sequential(first, second)
    apply_edits(net, [Refit(unit="1", tensors=("e0.weight",))], {"e0.weight": torch.eye(4)})
    assert net[0].weight is net[1].weight
    assert torch.equal(net(torch.ones(1, 4)), torch.ones(1, 4))


def test_the_optimizer_goes_on_with_place_and_state() -> None:
    model, (edit, tensors) = build("llama"), refit("llama")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(**batch_of("llama")).logits.square().mean().backward()
    optimizer.step()
    old = get_module(model, edit.unit).weight
    place = next(i for i, p in enumerate(model.parameters()) if p is old)
    momentum = optimizer.state[old]["momentum_buffer"]
    update_optimizer(optimizer, apply_edits(model, [edit], tensors))
    held = optimizer.param_groups[0]["params"]
    assert held[place] is get_module(model, edit.unit).weight
    assert len(held) == len(list(model.parameters()))
    assert torch.equal(optimizer.state[held[place]]["momentum_buffer"], momentum)


def refitted_plan(model: nn.Module) -> Plan:
    """Return a plan with removed neurons and new values for the readers."""
    edits, tensors = list[Edit](), dict[str, Tensor]()
    for number, edit in enumerate(neurons_gone(model)):
        unit = edit.unit.replace("fc1", "fc2")
        values = {f"e{2 * number + 1}.weight": torch.randn(32, 8), f"e{2 * number + 1}.bias": torch.randn(32)}
        edits += [edit, Refit(unit=unit, tensors=tuple(values))]
        tensors |= values
    return plan_for(model, edits, method="by hand", tensors=tensors)


def test_a_plan_a_folder_and_a_sum_of_plans_keep_it(tmp_path: Path) -> None:
    model, batch = build("timm"), batch_of("timm")
    plan = refitted_plan(model)
    again = Plan.load(plan.save(tmp_path / "plan.json"))
    assert again == plan
    assert set(again.needed_tensors) == set(plan.tensors)
    assert set(plan.removed) == {"neuron"}
    assert "refitted" in str(plan)
    apply_plan(model, again)
    _, values = refit("timm")
    edit = Refit(unit=PLACES["timm"], tensors=("e0.bias",))
    second = plan_for(model, [edit], method="by hand", tensors={"e0.bias": values["e0.bias"]})
    total = plan + second
    apply_plan(model, second)
    by_sum = build("timm")
    apply_plan(by_sum, total)
    assert torch.equal(output_of(by_sum, batch), output_of(model, batch))
    opened = load_pruned(save_pruned(model, total, tmp_path / "pruned"), build("timm"))
    assert torch.equal(output_of(opened, batch), output_of(model, batch))


def divergence(model: nn.Module, plan: Plan) -> float:
    pruned, batch = share_copy(model), batch_of("timm", 32, seed=77)
    apply_plan(pruned, plan)
    return float(output_divergence(output_of(model, batch), output_of(pruned, batch)))


def test_least_squares_anew_comes_nearer_than_kept_weights() -> None:
    model, batches = build("timm"), batches_of("timm", count=8, n=8)
    plan = refitted_plan(model)
    with unchanged(model):
        fitted = refit_plan(model, plan, batches)
    bare = plan_for(model, neurons_gone(model), method="by hand")
    assert fitted.edits == plan.edits
    assert divergence(model, fitted) < divergence(model, bare)
    pruned, by_refit = share_copy(model), share_copy(model)
    apply_plan(pruned, fitted)
    apply_plan(by_refit, plan, refit=batches)
    assert torch.equal(output_of(pruned, batch_of("timm")), output_of(by_refit, batch_of("timm")))


def smaller_heads_plan(model: nn.Module, size: int = 5) -> Plan:
    """Return a plan with an attention head removed per block and smaller heads, with arbitrary values."""
    groups = find_groups(model, batch_of("timm", 1), ("head", "head_dim"))
    gone = {one.name: torch.tensor([1]) if one.kind == "head" else torch.arange(size, one.size) for one in groups}
    edits: list[Edit] = [*narrow_edits(sorted(groups, key=lambda one: one.kind), gone)]
    pruned, tensors = share_copy(model), dict[str, Tensor]()
    apply_edits(pruned, edits)
    for unit in (f"blocks.{number}.attn.{layer}" for number in range(4) for layer in ("qkv", "proj")):
        values = {
            f"e{len(edits)}.{name}": torch.zeros_like(p) for name, p in get_module(pruned, unit).named_parameters()
        }
        edits.append(Refit(unit=unit, tensors=tuple(values)))
        tensors |= values
    return plan_for(model, edits, method="hand", tensors=tensors)


@pytest.mark.slow
def test_smaller_heads_are_fitted_anew_in_closed_form() -> None:
    model, batches = build("timm"), batches_of("timm", count=8, n=8)
    plan = smaller_heads_plan(model)
    with unchanged(model):
        fitted = refit_plan(model, plan, batches)
    bare = plan_for(model, [edit for edit in plan.edits if not isinstance(edit, Refit)], method="hand")
    assert fitted.edits == plan.edits
    assert fitted.tensors.keys() == plan.tensors.keys()
    assert divergence(model, fitted) < 0.5 * divergence(model, bare)


def test_heads_that_cannot_get_smaller_are_not_fitted_anew() -> None:
    model, batches = build("timm"), batches_of("timm")
    plan = smaller_heads_plan(model)
    edits = [edit.model_copy(update={"unit": "other"}) if isinstance(edit, Narrow) else edit for edit in plan.edits]
    other = plan.model_copy(update={"edits": tuple(edits)}).with_tensors(plan.tensors)
    with unchanged(model), pytest.raises(ValueError, match="Expected heads of 'other' that can get smaller once"):
        refit_plan(model, other, batches)


def test_dimensions_of_heads_leave_nothing_that_takes_over() -> None:
    with pytest.raises(ValueError, match="Expected no refitted tensors for dimensions of heads of 'a', but"):
        Narrow(unit="a", kind="head_dim", of=3, keep=(0,), group=(), tensors=("e0.a.weight",))


def refused(edits: Sequence[Edit], tensors: dict[str, Tensor], match: str) -> None:
    model = build("timm")
    with unchanged(model), pytest.raises(ValueError, match=match):
        apply_edits(model, edits, tensors)


def test_another_shape_is_refused() -> None:
    edit = Refit(unit="blocks.1.mlp.fc2", tensors=("e0.bias",))
    refused([edit], {"e0.bias": torch.ones(3)}, r"shape \(32,\) for the bias of 'blocks.1.mlp.fc2', but got \(3,\)")


@pytest.mark.parametrize(("unit", "held"), [("blocks.1.attn", "no parameters"), ("blocks.1.mlp.fc2", "weight, bias")])
def test_a_parameter_that_the_module_does_not_hold_is_refused(unit: str, held: str) -> None:
    refused([Refit(unit=unit, tensors=("e0.gain",))], {}, f"Expected '{unit}' .* to hold gain itself, but it .*{held}")


def test_a_parameter_that_is_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected one tensor for each parameter of 'a', but got e0.bias, e1.bias"):
        Refit(unit="a", tensors=("e0.bias", "e1.bias"))


@pytest.mark.parametrize(
    ("unit", "names", "match"),
    [
        ("blocks.1.norm1", ("weight", "bias"), "Expected linear layers and convolutions before the last.*norm1"),
        ("blocks.1.mlp.fc2", ("weight",), "with all parameters fitted.* but it holds bias, weight"),
    ],
)
def test_what_least_squares_cannot_fit_is_refused(unit: str, names: tuple[str, ...], match: str) -> None:
    model = build("timm")
    own = dict(get_module(model, unit).named_parameters())
    edit = Refit(unit=unit, tensors=tuple(f"e0.{name}" for name in names))
    plan = plan_for(model, [edit], method="by hand", tensors={f"e0.{name}": own[name].detach() for name in names})
    with unchanged(model), pytest.raises(ValueError, match=match):
        refit_plan(model, plan, batches_of("timm"))
