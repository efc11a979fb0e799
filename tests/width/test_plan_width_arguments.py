"""What `plan_width` takes for a loss and for labels, and what it refuses, by its message."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.sampling import one_in
from cases.width.plan_width import IMAGE, Batches, cnn, labelled_batches
from torch import nn
from torch.nn import functional as F

from prunerecover import Budget, find_groups, find_sites, find_units, plan_depth, plan_width
from prunerecover.importance.measuring.losses import supervised_loss
from prunerecover.refusal import Refusal


@pytest.fixture
def batches() -> Batches:
    return labelled_batches()


def test_default_loss_is_the_cross_entropy(batches: Batches) -> None:
    model, (images, labels) = cnn(), batches[0]
    assert torch.equal(supervised_loss(model, (images, labels)), F.cross_entropy(model(images), labels))


def test_default_loss_of_a_language_model_is_its_own() -> None:
    from cases.models.tiny import tiny_llama

    model, ids = tiny_llama(), torch.randint(10, (2, 6))
    batch = {"input_ids": ids, "labels": ids}
    assert torch.equal(supervised_loss(model, batch), model(**batch).loss)


@pytest.mark.slow
@pytest.mark.parametrize("key", one_in(2, ["label", "labels"]))
def test_labels_in_mappings_are_not_fed_to_the_network(batches: Batches, key: str) -> None:
    mappings = [{"x": images, key: labels} for images, labels in batches]
    assert plan_width(cnn(), Budget(macs=0.3), batches=mappings) == plan_width(cnn(), Budget(macs=0.3), batches=batches)
    assert find_groups(cnn(), mappings[0]) == find_groups(cnn(), batches[0])
    model = cnn()
    assert supervised_loss(model, mappings[0]) == supervised_loss(model, batches[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"Expected a budget, such as Budget\(macs=0.3\), and not both"),
        ({"budget": Budget(macs=0.1), "tolerance": 0.1}, "Expected a tolerance with allocation='tolerance'"),
        (
            {"budget": Budget(macs=0.1), "tolerance": 0.1, "allocation": "tolerance"},
            "Expected a budget or a tolerance, and not both",
        ),
        ({"budget": Budget(macs=0.1), "allocation": "best"}, "Expected allocation among per_cost, .*, but got 'best'"),
        (
            {"budget": Budget(macs=0.1), "importance": "gate_gradient"},
            "Expected argument importance to be .*'gate_gradient', which scores units of depth",
        ),
        (
            {"budget": Budget(macs=0.1), "importance": ["u_score", "r_score"]},
            "Expected one importance for allocation='per_cost', but got u_score, r_score. Two are for",
        ),
        (
            {"budget": Budget(ratio={"mlp": 0.1})},
            "Expected a budget in a share of macs, params or latency, or in units",
        ),
        ({"budget": Budget(remove={"head": 1, "neuron": 2})}, "in units of one kind among channel, .* add plans"),
        ({"budget": Budget(remove={"head": 1})}, "to have groups of kind head, but it has [0-9]* of kind channel"),
        ({"budget": Budget(remove={"channel": 9999})}, "Expected at most [0-9]* units of kind 'channel' to remove"),
        ({"budget": Budget(ratio={"channel": 0.99})}, "groups can meet, .* channels, but at most [0-9]* can go"),
        ({"budget": Budget(macs=0.99)}, "at most 9.* can go"),
        ({"budget": Budget(macs=0.1), "ignore": "layer9.*"}, "'layer9.*' matches none"),
        ({"budget": Budget(macs=0.1), "kinds": ("block",)}, "Expected kinds among channel, head, neuron"),
        ({"tolerance": 1.5, "allocation": "tolerance"}, "Expected a tolerance between 0 and 1, but got 1.5"),
    ],
)
def test_bad_arguments(batches: Batches, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_width(cnn(), batches=batches, **arguments)


@pytest.mark.parametrize(
    ("model", "holds"),
    [(nn.Sequential(nn.ReLU()), "modules without any"), (nn.Identity(), "nothing"), (nn.ModuleList(), "nothing")],
    ids=["relu", "identity", "empty"],
)
def test_a_model_without_parameters_has_nothing_that_may_go(model: nn.Module, holds: str, batches: Batches) -> None:
    message = f"Expected a network with parameters, but {type(model).__name__} has none: it holds {holds}. Pass the "
    for look in (
        lambda: plan_width(model, Budget(macs=0.3), batches=batches),
        lambda: plan_depth(model, remove={"block": 1}, batches=batches),
        lambda: find_sites(model, IMAGE),
        lambda: find_groups(model, IMAGE),
        lambda: find_units(model, IMAGE),
    ):
        with pytest.raises(Refusal, match=message):
            look()


def test_no_batches() -> None:
    with pytest.raises(ValueError, match="Expected at least one calibration batch, but got none"):
        plan_width(cnn(), Budget(macs=0.1), batches=[])


@pytest.mark.parametrize("cost", ["macs", "latency"])
def test_labels_missing(batches: Batches, cost: str) -> None:
    with pytest.raises(ValueError, match=r"Expected labelled batches, .* Pass loss=f\(model, batch\)"):
        plan_width(cnn(), Budget(**{cost: 0.1}), batches=[images for images, _ in batches])


def test_labels_of_another_shape(batches: Batches) -> None:
    wrong = [(images, labels[:, None].expand(-1, 7)) for images, labels in batches]
    with pytest.raises(
        ValueError, match=r"Expected labels that fit logits of shape \(16, 4\), but got shape \(16, 7\)"
    ):
        plan_width(cnn(), Budget(macs=0.1), batches=wrong)


def test_one_class_has_no_separation(batches: Batches) -> None:
    same = [(images, torch.zeros_like(labels)) for images, labels in batches]
    with pytest.raises(ValueError, match="class"):
        plan_width(cnn(), Budget(macs=0.1), batches=same, allocation="tolerance")


def test_budget_in_steps_needs_a_share_or_a_number() -> None:
    with pytest.raises(ValueError, match="Expected a budget in a share of cost or a number of units, but got {'ratio'"):
        Budget(ratio={"head": 0.2}).in_steps(2)


def test_budget_of_another_type(batches: Batches) -> None:
    with pytest.raises(TypeError, match="Expected argument budget to be a Budget, but got float"):
        plan_width(cnn(), 0.3, batches=batches)  # type: ignore[arg-type]


def test_nothing_left_to_narrow(batches: Batches) -> None:
    with pytest.raises(ValueError, match=r"Expected some groups outside ignore=\['\*'\], but all 6 are ignored"):
        plan_width(cnn(), Budget(macs=0.1), batches=batches, ignore="*")
