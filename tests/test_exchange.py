"""What units of one kind count for beside those of another is what lowers the loss of the pruned model."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from plan_width_cases import Batches, cnn, labelled_batches, vit

from prunerecover import Budget, Plan, apply_plan, plan_width, recalibrate_batchnorm
from prunerecover.copies import clone_of
from prunerecover.importance.losses import supervised_loss
from prunerecover.width.exchange import exchange_rates, weighted
from prunerecover.width.planner import WidthPlanner
from prunerecover.width.pruned_loss import pruned_loss


@pytest.mark.parametrize(("best", "expected"), [(1.0, 1.0), (4.3, 4.0), (0.2, 0.25), (1e6, 32.0), (1e-6, 1 / 32)])
def test_a_rate_is_climbed_to_in_both_directions_and_within_bounds(best: float, expected: float) -> None:
    asked = []

    def loss_at(rates: Mapping[str, float]) -> float:
        asked.append(rates["head"])
        return abs(math.log(rates["head"] / best))

    assert exchange_rates(["neuron", "head"], loss_at) == {"neuron": 1.0, "head": expected}
    assert len(asked) == len(set(asked))


def test_kinds_are_climbed_one_after_the_other() -> None:
    best = {"channel": 1.0, "neuron": 8.0, "head": 0.5}
    found = exchange_rates(list(best), lambda rates: sum(abs(math.log(rates[kind] / best[kind])) for kind in best))
    assert found == best


def test_where_the_loss_is_not_a_number_everything_counts_as_it_is() -> None:
    assert exchange_rates(["neuron", "head"], lambda rates: math.nan) == {"neuron": 1.0, "head": 1.0}


def test_no_rate_that_was_tried_beats_the_one_in_the_plan() -> None:
    """Independently: the plan of another rate, applied, has no lower loss on the same samples."""
    model, batches = vit(), labelled_batches()
    planner = WidthPlanner(model, batches=batches)
    plan = planner.plan(Budget(macs=0.4))
    rates = plan.evidence["rates"]
    assert rates["neuron"] == 1.0
    assert set(rates) == {"neuron", "head"}

    def loss_of(plan: Plan) -> float:
        network = clone_of(model)
        apply_plan(network, plan)
        with torch.no_grad():
            return float(sum(supervised_loss(network, batch) for batch in batches)) / len(batches)

    (scores,) = planner.scores("gate_taylor")
    for factor in (0.5, 2.0):
        other = WidthPlanner(model, batches=batches)
        tried = {**rates, "head": rates["head"] * factor}
        other._scores["gate_taylor"] = weighted(planner.groups, scores, tried)
        other._rates = lambda *_: {}  # type: ignore[method-assign]
        assert loss_of(plan) <= loss_of(other.plan(Budget(macs=0.4))) + 1e-6


@pytest.mark.parametrize(
    ("budget", "how"),
    [
        (Budget(macs=0.3), {"protection": "magnitude"}),
        (Budget(macs=0.3), {"allocation": "global"}),
        (Budget(macs=0.3), {"allocation": "uniform"}),
        (Budget(macs=0.3), {"kinds": ("neuron",)}),
        (Budget(remove={"head": 2}), {}),
    ],
)
def test_published_rules_single_kinds_and_units_take_scores_as_they_are(budget: Budget, how: dict[str, str]) -> None:
    assert "rates" not in plan_width(vit(), budget, batches=labelled_batches(), **how).evidence  # type: ignore[arg-type]


def test_the_loss_is_that_of_the_pruned_model_with_recalibrated_statistics() -> None:
    model, batches = cnn(), labelled_batches()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan = plan_width(model, Budget(macs=0.3), batches=batches)
    found = pruned_loss(model, plan.edits, plan.tensors, batches, supervised_loss)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    pruned = clone_of(model)
    apply_plan(pruned, plan)
    recalibrate_batchnorm(pruned, batches)
    with torch.no_grad():
        expected = sum(supervised_loss(pruned.eval(), batch) for batch in batches) / len(batches)
    assert found == pytest.approx(float(expected))


def test_a_smaller_last_batch_counts_for_as_much_as_it_holds() -> None:
    model = vit()
    (images, labels), _ = labelled_batches()
    whole: Batches = [(images, labels)]
    parts: Batches = [(images[:12], labels[:12]), (images[12:], labels[12:])]
    losses = [pruned_loss(model, (), {}, batches, supervised_loss) for batches in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
