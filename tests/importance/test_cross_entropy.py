"""The loss without each unit, against a real removal and a measurement."""

from __future__ import annotations

import pytest
import torch
from cases.engine import batches_of, build
from torch import Tensor, nn

from prunerecover import apply_plan, find_units, plan_depth
from prunerecover.importance.context import DepthContext
from prunerecover.importance.without_unit import cross_entropy


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(batch), torch.zeros(len(batch), dtype=torch.long))


@pytest.mark.slow
def test_a_score_is_the_loss_of_the_network_without_the_unit() -> None:
    batches = batches_of("timm")
    units = find_units(build("timm"), kinds=("block", "attention"))
    context = DepthContext(model=build("timm"), units=units, batches=batches, loss=loss, replace="zero")
    scores = cross_entropy(context)
    for unit in units:
        model = build("timm").eval()
        others = [other.name for other in units if other.kind == unit.kind and other is not unit]
        apply_plan(model, plan_depth(model, remove={unit.kind: 1}, batches=batches, replace="zero", ignore=others))
        samples = sum(map(len, batches))
        wanted = sum(float(loss(model, batch)) * len(batch) for batch in batches) / samples
        assert scores[unit.name] == pytest.approx(wanted, rel=1e-5)


def test_it_needs_a_loss() -> None:
    with pytest.raises(ValueError, match=r"argument loss=f\(model, batch\) for importance='cross_entropy'"):
        plan_depth(build("timm"), remove={"attention": 1}, batches=batches_of("timm"), importance="cross_entropy")


def test_layers_are_ranked_by_it() -> None:
    plan = plan_depth(
        build("timm"),
        remove={"layer": 2},
        batches=batches_of("timm"),
        importance="cross_entropy",
        loss=loss,
        search="rounds",
    )
    assert len(plan.removed["layer"]) == 2
