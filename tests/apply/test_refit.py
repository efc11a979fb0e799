"""Refitting a plan to other weights: equal to planning there, for plans of one stage and of several."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.engine import batch_of, batches_of, build, output_of, unchanged
from torch import nn

from prunerecover.apply import apply_plan, refit_plan
from prunerecover.depth.plan_depth import plan_depth
from prunerecover.divergence.registry import output_divergence
from prunerecover.model.batches import split_batches
from prunerecover.model.hashing import weights_hash
from prunerecover.plan.plan import Plan
from prunerecover.surgery.merging import merge


def trained(model: nn.Module) -> nn.Module:
    """Stands for the same structure with other weights."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator) * parameter.std())
    return model


def divergence(dense: nn.Module, pruned: nn.Module, name: str) -> float:
    batch = batch_of(name, 32, seed=77)
    return float(output_divergence(output_of(dense, batch), output_of(pruned, batch)))


@pytest.mark.parametrize("name", ["timm_all", "gpt2", "bert"])
def test_refit_on_the_same_weights_changes_nothing(name: str) -> None:
    model, batches = build(name), batches_of(name)
    plan = plan_depth(model, remove={"attention": 1, "activation": 2, "block": 1}, batches=batches)
    again = refit_plan(model, plan, batches)
    assert again.edits == plan.edits
    for key, tensor in plan.tensors.items():
        assert torch.allclose(again.tensors[key], tensor, atol=1e-4)


@pytest.mark.slow
def test_refit_fits_the_weights_at_hand() -> None:
    batches = batches_of("timm", count=8, n=8)
    plan = plan_depth(build("timm"), remove={"attention": 1, "activation": 2}, batches=batches)
    other = trained(build("timm"))
    stale, fresh = copy.deepcopy(other), copy.deepcopy(other)
    stale_plan = plan.model_copy(update={"source": plan.source.model_copy(update={"weights": None})})
    apply_plan(stale, stale_plan.with_tensors(plan.tensors))
    apply_plan(fresh, plan, refit=batches)
    assert divergence(other, fresh, "timm") < divergence(other, stale, "timm")


def test_refit_leaves_the_model_alone_and_notes_its_weights() -> None:
    batches = batches_of("timm_all")
    plan = plan_depth(build("timm_all"), remove={"activation": 2, "attention": 2}, batches=batches)
    model = trained(build("timm_all")).train()
    with unchanged(model):
        again = refit_plan(model, plan, batches)
    assert again.source.weights == weights_hash(model)
    assert again.removed == plan.removed
    apply_plan(model, again)


def test_named_replacements_stay_what_they_are() -> None:
    batches = batches_of("timm")
    for replace in ("identity", "zero"):
        plan = plan_depth(build("timm"), remove={"attention": 1, "mlp": 1}, batches=batches, replace=replace)
        again = refit_plan(trained(build("timm")), plan, batches)
        assert again.edits == plan.edits
        assert not again.tensors


def sum_of_stages(name: str, batches: list[torch.Tensor]) -> Plan:
    """Prune, merge, take out a block, prune again: names and structure move on the way."""
    model = build(name)
    total = Plan()
    for remove in ({"activation": 1, "block": 1}, {"attention": 1, "activation": 1}):
        plan = plan_depth(model, remove=remove, batches=batches)
        apply_plan(model, plan)
        total = total + plan + merge(model)
    return total


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm", "gpt2"])
def test_sum_of_plans_is_refitted_stage_by_stage(name: str) -> None:
    batches = batches_of(name)
    total = sum_of_stages(name, batches)
    model = build(name)
    again = refit_plan(model, total, batches)
    assert again.tensors.keys() == total.tensors.keys()
    for key, tensor in total.tensors.items():
        assert torch.allclose(again.tensors[key], tensor, atol=2e-3), key
    apply_plan(model, total, refit=batches)


def test_too_few_samples_to_fit_are_refused() -> None:
    plan = plan_depth(build("timm"), remove={"activation": 1}, batches=batches_of("timm"))
    model = trained(build("timm"))
    message = r"Expected something that 'blocks.*act' \(activation\) can leave, but .* cannot be fitted on 4 samples"
    with unchanged(model), pytest.warns(UserWarning, match="Only 4"), pytest.raises(ValueError, match=message):
        apply_plan(model, plan, refit=[batch_of("timm", 4)])


def test_refit_of_another_model_is_refused() -> None:
    plan = plan_depth(build("timm"), remove={"activation": 1}, batches=batches_of("timm"))
    with pytest.raises(ValueError, match="Expected the model that the plan was made for"):
        refit_plan(build("timm_all"), plan, batches_of("timm"))


def test_split_is_the_plans_own() -> None:
    """Every 4th sample is held out, from `seed` on."""
    samples = split_batches(
        [torch.arange(10.0)[:, None], torch.arange(10.0, 16.0)[:, None]], torch.device("cpu"), seed=1
    )
    assert torch.cat([b.args[0] for b in samples.held_out]).flatten().tolist() == [2, 6, 10, 14]
    assert samples.n_samples == 16
