"""Plans fitted anew to the weights at hand: nearer than kept values, and refused where nothing can be fitted."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from cases.engine import batch_of, batches_of, build, output_of, unchanged
from torch import Tensor, nn

from prunerecover.apply import apply_plan, refit_plan
from prunerecover.divergence.registry import output_divergence
from prunerecover.model.copies import share_copy
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Edit, Fold, Narrow, Refit
from prunerecover.plan.plan import Plan
from prunerecover.planning.plan_depth import plan_depth
from prunerecover.sites.find import find_groups
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.merging import block_removals, merge
from prunerecover.surgery.provenance import plan_for
from prunerecover.width.groups.narrow_edits import narrow_edits


def trained(model: nn.Module) -> nn.Module:
    """Return the model with other weights of the same structure."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator) * parameter.std())
    return model


def divergence(dense: nn.Module, plan: Plan, **how: Any) -> float:
    """Return how far a copy is from the dense network after a plan."""
    pruned, batch = share_copy(dense), batch_of("timm", 32, seed=77)
    apply_plan(pruned, plan, **how)
    return float(output_divergence(output_of(dense, batch), output_of(pruned, batch)))


@pytest.mark.parametrize("name", ["timm_all", "bert"])
def test_refit_on_the_same_weights_changes_nothing(name: str) -> None:
    model, batches = build(name), batches_of(name)
    plan = plan_depth(model, remove={"attention": 1, "activation": 2, "block": 1}, batches=batches)
    again = refit_plan(model, plan, batches)
    assert again.edits == plan.edits
    for key, tensor in plan.tensors.items():
        assert torch.allclose(again.tensors[key], tensor, atol=1e-4)


@pytest.mark.slow
def test_refit_fits_the_weights_at_hand() -> None:
    batches, other = batches_of("timm", count=8, n=8), trained(build("timm"))
    plan = plan_depth(build("timm"), remove={"attention": 1, "activation": 2}, batches=batches)
    stale = plan.model_copy(update={"source": plan.source.model_copy(update={"weights": None})})
    assert divergence(other, plan, refit=batches) < divergence(other, stale.with_tensors(plan.tensors))


def test_named_replacements_stay_what_they_are() -> None:
    batches = batches_of("timm")
    for replace in ("identity", "zero"):
        plan = plan_depth(build("timm"), remove={"attention": 1, "mlp": 1}, batches=batches, replace=replace)
        again = refit_plan(trained(build("timm")), plan, batches)
        assert again.edits == plan.edits
        assert not again.tensors


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm", "gpt2"])
def test_sum_of_plans_is_refitted_stage_by_stage(name: str) -> None:
    """Prune, merge, take out a block, prune again: names and structure move on the way."""
    model, total, batches = build(name), Plan(), batches_of(name)
    for remove in ({"activation": 1, "block": 1}, {"attention": 1, "activation": 1}):
        plan = plan_depth(model, remove=remove, batches=batches)
        apply_plan(model, plan)
        total = total + plan + merge(model)
    model = build(name)
    again = refit_plan(model, total, batches)
    assert again.tensors.keys() == total.tensors.keys()
    for key, tensor in total.tensors.items():
        assert torch.allclose(again.tensors[key], tensor, atol=2e-3), key
    apply_plan(model, total, refit=batches)


def with_values(model: nn.Module, edits: Sequence[Edit], units: Sequence[str]) -> Plan:
    """Return a plan that also gives layers values, zero ones."""
    pruned, tensors, found = copy.deepcopy(model), dict[str, Tensor](), list(edits)
    apply_edits(pruned, edits)
    for unit in units:
        own = get_module(pruned, unit).named_parameters()
        values = {f"e{len(found)}.{name}": torch.zeros_like(value) for name, value in own}
        found.append(Refit(unit=unit, tensors=tuple(values)))
        tensors |= values
    return plan_for(model, found, method="by hand", tensors=tensors)


def fewer_neurons(model: nn.Module) -> Plan:
    """Return a plan with only the first neurons of all MLPs, and new values for their readers."""
    groups = find_groups(model, batch_of("timm", 1), "neuron")
    edits = narrow_edits(groups, {group.name: torch.arange(8, group.size) for group in groups})
    return with_values(model, edits, [f"blocks.{number}.mlp.fc2" for number in range(4)])


def smaller_heads(model: nn.Module) -> Plan:
    """Return a plan with an attention head removed per block, smaller heads, and new values for the layers."""
    groups = find_groups(model, batch_of("timm", 1), ("head", "head_dim"))
    gone = {one.name: torch.tensor([1]) if one.kind == "head" else torch.arange(5, one.size) for one in groups}
    edits = narrow_edits(sorted(groups, key=lambda one: one.kind), gone)
    return with_values(model, edits, [f"blocks.{i}.attn.{layer}" for i in range(4) for layer in ("qkv", "proj")])


@pytest.mark.parametrize(
    ("planned", "most"), [(fewer_neurons, 1), pytest.param(smaller_heads, 0.5, marks=pytest.mark.slow)]
)
def test_least_squares_anew_comes_nearer_than_kept_weights(planned: Any, most: float) -> None:
    model, batches = build("timm"), batches_of("timm", count=8, n=8)
    plan = planned(model)
    with unchanged(model):
        fitted = refit_plan(model, plan, batches)
    bare = plan_for(model, [edit for edit in plan.edits if not isinstance(edit, Refit)], method="by hand")
    assert fitted.edits == plan.edits
    assert fitted.tensors.keys() == plan.tensors.keys()
    found = divergence(model, fitted)
    assert found < most * divergence(model, bare)
    assert found == divergence(model, plan, refit=batches)


def test_other_models_and_few_samples_are_refused() -> None:
    plan = plan_depth(build("timm"), remove={"activation": 1}, batches=batches_of("timm"))
    model = trained(build("timm"))
    message = r"Expected at least 8 samples to fit 'blocks.*act' again, but got 4. Pass more batches"
    with unchanged(model), pytest.raises(ValueError, match=message):
        apply_plan(model, plan, refit=[batch_of("timm", 4)])
    with pytest.raises(ValueError, match="Expected the model that the plan was made for"):
        refit_plan(build("timm_all"), plan, batches_of("timm"))


def of_other_heads(model: nn.Module) -> Plan:
    plan = smaller_heads(model)
    edits = [edit.model_copy(update={"unit": "other"}) if isinstance(edit, Narrow) else edit for edit in plan.edits]
    return plan.model_copy(update={"edits": tuple(edits)}).with_tensors(plan.tensors)


def of_a_part(model: nn.Module) -> Plan:
    edit = Refit(unit="blocks.1.mlp.fc2", tensors=("e0.weight",))
    return plan_for(model, [edit], method="by hand", tensors={"e0.weight": model.blocks[1].mlp.fc2.weight.detach()})


def of_an_earlier_version(model: nn.Module) -> Plan:
    tensors = {"e0.weight": torch.eye(32), "e0.bias": torch.ones(32)}
    edits = [Fold(unit="blocks.2", into="blocks.1.mlp.fc2", tensors=tuple(tensors)), *block_removals(model, [2])]
    plan = plan_for(model, edits, method="depth/output_divergence", seed=0, tensors=tensors)
    pruned = share_copy(model)
    apply_plan(pruned, plan)  # as ever
    assert len(pruned.blocks) == 3
    return plan


@pytest.mark.parametrize(
    ("planned", "message"),
    [
        (of_other_heads, "Expected heads of 'other' that can get smaller once"),
        (lambda model: with_values(model, [], ["blocks.1.norm1"]), "linear layers and convolutions before the .*norm1"),
        (of_a_part, "with all parameters fitted.* but it holds bias, weight"),
        (
            of_an_earlier_version,
            "can be fitted again, but 'blocks.2' leaves a map in 'blocks.1.mlp.fc2', as plans of earlier versions do",
        ),
    ],
)
def test_what_cannot_be_fitted_anew_is_refused(planned: Any, message: str) -> None:
    model = build("timm")
    plan = planned(model)
    with unchanged(model), pytest.raises(ValueError, match=message):
        refit_plan(model, plan, batches_of("timm"))
