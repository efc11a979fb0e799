"""Width planned out of the library: the plan of `plan_pruning` of the same kinds, and where it does not serve."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.width.plan_width import cnn, labelled_batches, removed_share, vit
from torch import nn

from prunerecover import Budget, apply_plan, plan_pruning, plan_width

KINDS = ("neuron", "head")


@pytest.mark.slow
@pytest.mark.parametrize("cost", ["macs", "params"])
def test_the_plan_is_that_of_pruning_by_the_same_kinds(cost: str) -> None:
    budget, batches = Budget(**{cost: 0.3}), labelled_batches()
    found = plan_width(vit(), budget, batches=batches, kinds=KINDS)
    shared = plan_pruning(vit(), budget, batches=batches, kinds=KINDS)
    assert found.made_by.method == "width/program"
    assert found.edits == shared.edits
    assert all(torch.equal(value, shared.tensors[name]) for name, value in found.tensors.items())
    assert 0.3 <= removed_share(vit(), found, cost) < 0.33


def test_heads_get_smaller_where_no_kinds_are_named() -> None:
    model = vit()
    plan = plan_width(model, Budget(macs=0.5), batches=labelled_batches())
    assert "head_dim" in plan.removed
    assert set(plan.made_by.arguments["kinds"]) == {"channel", "head", "neuron"}
    apply_plan(model, plan)
    (images, _), *_ = labelled_batches()
    assert model(images).shape == (len(images), 4)


def plain() -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(8, 4)).eval()


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (cnn, {}),
        (plain, {}),
        (vit, {"allocation": "per_cost"}),
        (vit, {"importance": "magnitude"}),
        (vit, {"replace": "zero"}),
        (vit, {"kinds": ("hidden",)}),
    ],
    ids=["BatchNorm", "channels", "by name", "by an importance", "nothing taken over", "hidden features"],
)
def test_per_cost_where_the_library_does_not_serve(make: Any, how: dict[str, Any]) -> None:
    plan = plan_width(make(), Budget(params=0.2), batches=labelled_batches(), **how)
    assert plan.made_by.method == "width/per_cost"
