"""Weights of kinds minimise the change of the pruned model's output."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from cases.engine import unchanged
from cases.models.tiny import tiny_mixture
from cases.width.plan_width import Batches, cnn, labelled_batches, vit
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import Budget, apply_plan, plan_width
from prunerecover.calibration.samples import split_batches
from prunerecover.divergence.registry import output_divergence
from prunerecover.model.batches import ModelInputs
from prunerecover.model.copies import deep_copy
from prunerecover.recovery.judged import recalibration
from prunerecover.session.pruned_output import PrunedOutput, subsample
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.width.allocation.by_importance import per_cost
from prunerecover.width.allocation.kind_weights import KindWeights, best_kind_weights, number_of_trials
from prunerecover.width.allocator import WidthAllocator
from prunerecover.width.arguments import WidthConfig
from prunerecover.width.compensation import fit_compensation, with_compensation
from prunerecover.width.groups.narrow_edits import narrow_edits


def inputs() -> list[ModelInputs]:
    """The test images in two batches, without labels."""
    return [ModelInputs((images,)) for images, _ in labelled_batches()]


KINDS = ["neuron", "head"]


def distance(rate: float, best: float) -> float:
    return abs(math.log(rate / best))


@pytest.mark.parametrize(
    ("divergence", "expected"),
    [
        *((partial(distance, best=best), rate) for best, rate in ((1.0, 1.0), (2.2, 2.0), (9.0, 8.0), (0.2, 0.25))),
        *((partial(distance, best=best), rate) for best, rate in ((1e6, 32.0), (1e-6, 0.125))),  # within bounds
        (lambda rate: 1.0 if rate < 12 else 0.5, 16.0),  # a better rate beyond others with the same units
        (lambda rate: math.nan, 1.0),
        (lambda rate: math.nan if rate == 1 else rate, 0.125),
    ],
)
def test_the_best_rate_is_found_in_both_directions(divergence: Callable[[float], float], expected: float) -> None:
    """Where the divergence depends on the rate of heads alone."""
    found = best_kind_weights(KINDS, lambda tried: divergence(tried.rates["head"]))
    assert found.rates == {"neuron": 1.0, "head": expected}


@pytest.mark.parametrize("damping", [0.0, 1.0])
def test_kinds_are_found_one_after_the_other_and_damping_last(damping: float) -> None:
    best, asked = {"channel": 1.0, "neuron": 8.0, "head": 0.5}, []

    def divergence_at(tried: KindWeights) -> float:
        asked.append(tried)
        return sum(abs(math.log(tried.rates[kind] / best[kind])) for kind in best) + abs(tried.damping - damping)

    assert best_kind_weights(list(best), divergence_at) == KindWeights(best, damping)
    assert len(asked) == len({str(tried) for tried in asked}) == number_of_trials(list(best))


def divergence_of(model: nn.Module, planner: WidthAllocator, rate: float, damping: float, batches: Batches) -> float:
    """Return the divergence at a rate, narrowed by hand without the planner's cache."""
    (scores,) = planner.scores("gate_taylor")
    network = deep_copy(model)
    weights = {group.name: (rate if group.kind == "head" else 1) * scores[group.name] for group in planner.groups}
    removed = per_cost(planner.groups, weights, planner.costs, Budget(macs=0.4), damping=damping)
    edits = narrow_edits(planner.groups, removed)
    samples = split_batches([images for images, _ in batches], torch.device("cpu"))
    apply_edits(network, *with_compensation(edits, fit_compensation(network, edits, samples.fit)))
    images = torch.cat([batch.args[0] for batch in samples.held_out])
    with torch.no_grad():
        return float(output_divergence(model(images), network.eval()(images)))


def test_nothing_that_was_tried_beats_what_is_in_the_plan() -> None:
    model, batches = vit(), labelled_batches()
    planner = WidthAllocator(Session(model, batches))
    evidence = planner.plan(Budget(macs=0.4)).evidence
    rates, damping = evidence["rates"], evidence["damping"]
    assert list(rates) == KINDS
    assert rates["neuron"] == 1.0
    others = [divergence_of(model, planner, rate, 1.0, batches) for rate in (0.25, 1.0, 4.0, 16.0)]
    others.append(divergence_of(model, planner, rates["head"], 1.0 - damping, batches))
    chosen = divergence_of(model, planner, rates["head"], damping, batches)
    assert chosen <= min(others) + 1e-6
    assert chosen < max(others)


def channels_and_neurons() -> nn.Module:
    torch.manual_seed(0)
    head = (nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head).eval()


@pytest.mark.parametrize(
    ("model", "budget", "how"),
    [
        (vit, Budget(macs=0.3), {"allocation": "global"}),
        (vit, Budget(macs=0.3), {"allocation": "uniform"}),
        (vit, Budget(macs=0.3), {"kinds": ("neuron",)}),
        (vit, Budget(remove={"head": 2}), {}),
        (channels_and_neurons, Budget(macs=0.3), {}),
    ],
)
def test_published_rules_single_kinds_channels_and_units_take_scores_as_they_are(
    model: Callable[[], nn.Module], budget: Budget, how: dict[str, Any]
) -> None:
    plan = plan_width(model(), budget, batches=labelled_batches(), replace="zero", **how)
    assert plan.edits
    assert "rates" not in plan.evidence


@pytest.mark.parametrize("training", [False, True])
def test_the_divergence_is_that_of_the_plan_with_recalibrated_statistics(training: bool) -> None:
    """And leaves the model's own statistics alone, also of a model in training mode, as in a fit."""
    model, batches = cnn(), inputs()
    plan = plan_width(model, Budget(macs=0.3), batches=labelled_batches())
    model.train(training)
    with unchanged(model):
        found = PrunedOutput(model, batches).divergence(plan.edits, plan.tensors)
    pruned = deep_copy(model.eval())
    apply_plan(pruned, plan)
    recalibration(pruned, model, plan)(batches)
    with torch.no_grad():
        expected = [output_divergence(model(x), pruned.eval()(x)) for (x,) in (batch.args for batch in batches)]
    assert found == pytest.approx(float(sum(expected)) / len(expected))


def test_a_smaller_last_batch_counts_for_as_much_as_it_holds() -> None:
    model = vit()
    plan = plan_width(model, Budget(macs=0.3), batches=labelled_batches(), kinds="neuron", replace="zero")
    (images,) = inputs()[0].args
    whole, parts = [ModelInputs((images,))], [ModelInputs((part,)) for part in images.split(12)]
    found = [PrunedOutput(model, batches).divergence(plan.edits, plan.tensors) for batches in (whole, parts)]
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    assert found[0] > 0


def test_single_samples_leave_statistics_as_they_are() -> None:
    """BatchNorm1d has no variance over a single sample."""
    network = nn.Sequential(vit(), nn.BatchNorm1d(4)).eval()
    images, labels = labelled_batches()[0]
    single = [(x[None], y[None]) for x, y in zip(images, labels, strict=True)]
    assert plan_width(network, Budget(macs=0.3), batches=single).made_by.method == "width/program"
    plan = plan_width(network, Budget(macs=0.3), batches=single, allocation="per_cost")
    assert set(plan.evidence["rates"]) == set(KINDS)


def boxes(found: Tensor) -> Any:
    """Return a variable number of boxes."""
    return [{"boxes": found.repeat(3, 1)}]


def words(found: Tensor) -> Any:
    """Return no tensor at all, in evaluation mode."""
    return found if torch.is_grad_enabled() else "cat"


@pytest.mark.parametrize("output", [boxes, words, Tensor.mean], ids=["boxes", "words", "one number"])
def test_outputs_that_cannot_be_compared_leave_kinds_as_scored(output: Callable[[Tensor], Any]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = vit()

        def forward(self, images: Tensor) -> Any:
            return output(self.body(images))

    def loss(network: Any, batch: Any) -> Tensor:
        return F.cross_entropy(network.body(batch[0]), batch[1])

    plan = plan_width(Model(), Budget(macs=0.3), batches=labelled_batches(), loss=loss)
    assert plan.removed
    assert "rates" not in plan.evidence


def test_experts_are_weighed_for_parameters_alone() -> None:
    ids = torch.randint(40, (8, 6), generator=torch.Generator().manual_seed(0))
    config = WidthConfig(kinds=("head", "neuron", "expert"))
    planner = WidthAllocator(Session(tiny_mixture("qwen3_moe"), [{"input_ids": ids, "labels": ids}]), config)
    assert "expert" not in planner.plan(Budget(macs=0.1)).evidence.get("rates", {})
    assert "expert" in planner.plan(Budget(params=0.2)).evidence["rates"]


def test_a_trial_spreads_its_samples_over_sorted_batches() -> None:
    batches = [ModelInputs((torch.full((16, 1), float(number)),)) for number in range(16)]
    assert [float(batch.args[0][0, 0]) for batch in subsample(batches, 64)] == [0.0, 4.0, 8.0, 12.0]
    assert subsample(batches[:2], 64) == batches[:2]


def test_budgets_that_are_near_are_weighed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(PrunedOutput, "divergence", lambda *_: asked.append(1.0) or float(len(asked)))
    planner = WidthAllocator(Session(vit(), labelled_batches()))
    for share, trials in ((0.3, 1), (0.32, 1), (0.36, 2)):
        planner.decided(Budget(macs=share))
        assert len(asked) == trials * number_of_trials(KINDS)
