"""Refitted weights are tuned on the output: from the least-squares solution, on other samples than the judging ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from cases.width.plan_width import IMAGES, MODELS, narrowed, spread, vit
from torch import Tensor, nn

from prunerecover import Budget, apply_plan, plan_width
from prunerecover.apply import refit_plan
from prunerecover.calibration.learning import EPOCHS
from prunerecover.divergence.registry import output_divergence
from prunerecover.model.copies import deep_copy
from prunerecover.plan.edits import Edit
from prunerecover.session.pruned_output import judge_of
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.width.allocator import WidthAllocator
from prunerecover.width.tuning import TakenOver, taken_over, tuned_tensors


def in_place(model: nn.Module, edits: tuple[Edit, ...], tensors: dict[str, Tensor]) -> tuple[Any, list[TakenOver]]:
    """Return the pruned model and the values to learn."""
    network = deep_copy(model)
    apply_edits(network, edits, tensors)
    return network, taken_over(model, network, edits, tensors)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_gradients_are_those_of_the_numbers(make: Any) -> None:
    """A small step along the gradient changes the divergence by the gradient's square times the step."""
    model, edits, tensors, samples = narrowed(make)
    network, learnt = in_place(model.double(), edits, {key: value.double() for key, value in tensors.items()})
    inputs = torch.cat([batch.args[0] for batch in samples.fit]).double()
    dense = model(inputs).detach()
    before = output_divergence(dense, network(inputs))
    for one, found in zip(learnt, torch.autograd.grad(before, [one.source for one in learnt]), strict=True):
        one.take_gradient(found)
    length = sum(float(gradient(one).square().sum()) for one in learnt)
    step = 1e-3 * float(before) / length
    for one in learnt:
        one.value.sub_(step * gradient(one))
        one.put_in_place()
    after = output_divergence(dense, network(inputs))
    assert float(before - after) == pytest.approx(step * length, rel=0.05)


def gradient(one: TakenOver) -> Tensor:
    assert one.value.grad is not None
    return one.value.grad


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_output_is_closer_on_samples_that_nothing_was_fitted_to(make: Any) -> None:
    model, edits, tensors, samples = narrowed(make)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    judge = judge_of(model, samples)
    found = tuned_tensors(edits, tensors, replace(samples, whole=samples.fit), judge)
    assert judge.divergence(edits, found) < judge.divergence(edits, tensors)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_the_epoch_is_kept_that_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    model, edits, tensors, samples = narrowed(vit)
    judge, seen = judge_of(model, samples), list[float]()
    divergence = judge.divergence

    def watched(*args: Any) -> float:
        seen.append(divergence(*args))
        return seen[-1]

    monkeypatch.setattr(judge, "divergence", watched)
    found = tuned_tensors(edits, tensors, replace(samples, whole=samples.fit), judge)
    assert len(seen) == 1 + EPOCHS
    assert divergence(edits, found) == min(seen)


@pytest.mark.slow
def test_what_a_user_plans_is_tuned_and_the_same_each_time() -> None:
    batches = [(images, torch.arange(8) % 4) for images in IMAGES.split(8)]
    plans = [plan_width(spread(vit()), Budget(macs=0.4), batches=batches, allocation="per_cost") for _ in range(2)]
    assert all(torch.equal(plans[1].tensors[key], value) for key, value in plans[0].tensors.items())
    untuned = WidthAllocator(Session(spread(vit()), batches)).decided(Budget(macs=0.4))
    assert untuned.edits == plans[0].edits
    inputs = torch.randn(64, 3, 16, 16, generator=torch.Generator().manual_seed(4))
    divergences = []
    for plan in (plans[0], untuned):
        pruned = spread(vit())
        apply_plan(pruned, plan)
        with torch.inference_mode():
            divergences.append(float(output_divergence(spread(vit())(inputs), pruned(inputs))))
    assert divergences[0] < divergences[1]


@pytest.mark.slow
def test_the_seed_of_a_plan_says_what_is_held_out_when_it_is_refitted() -> None:
    batches = [(images, torch.arange(8) % 4) for images in IMAGES.split(8)]
    plan = plan_width(spread(vit()), Budget(macs=0.4), batches=batches, seed=3, allocation="per_cost")
    again, other = refit_plan(spread(vit()), plan, batches), refit_plan(spread(vit()), plan, batches, seed=0)
    assert all(torch.allclose(again.tensors[key], value, atol=1e-4) for key, value in plan.tensors.items())
    assert not all(torch.equal(again.tensors[key], value) for key, value in other.tensors.items())
