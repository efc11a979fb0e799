"""`plan_width` meets budgets, and the narrowed model equals the masked one."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from cases.width.plan_width import IMAGE, Batches, cnn, labelled_batches, removed_share, vit
from cases.width.scores import removable
from torch import Tensor, nn

from prunerecover import Budget, Plan, apply_plan, find_groups, plan_width
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.width.allocator import WidthAllocator
from prunerecover.width.arguments import WidthRule

ALLOCATIONS: tuple[Any, ...] = ("per_cost", "fair_pruner", "uniform", "global")


@pytest.fixture
def batches() -> Batches:
    return labelled_batches()


@pytest.mark.slow
def test_budgets_are_met_to_a_unit() -> None:
    model = cnn()
    planner = WidthAllocator(Session(model, labelled_batches()))  # keeps its measurements for all budgets
    for allocation, cost, share in itertools.product(ALLOCATIONS, ("macs", "params"), (0.1, 0.5)):
        plan = planner.plan(Budget(**{cost: share}), WidthRule(allocation=allocation))
        assert share <= removed_share(model, plan, cost) < share + 0.03  # ResNet-8's widest unit is 3% of it


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "allocation"), [({"remove": 31}, "per_cost"), ({"ratio": 0.2}, "uniform")])
def test_budgets_in_units_are_met_exactly(batches: Batches, allocation: Any, budget: Any) -> None:
    model, budget = cnn(), Budget(**{how: {"channel": number} for how, number in budget.items()})
    plan = plan_width(model, budget, batches=batches, allocation=allocation)
    available = sum(group.size for group in find_groups(model, IMAGE).groups)
    assert len(plan.removed["channel"]) == budget.counts({"channel": available})["channel"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)], ids=["inf", "bf16"])
def test_the_mode_that_the_caller_is_in_does_not_matter(batches: Batches, mode: Any) -> None:
    model = cnn()
    plan = plan_width(model, Budget(macs=0.3), batches=batches)
    with mode:
        given = [(x.clone(), y.clone()) for x, y in batches]  # inference tensors, in inference mode
        assert plan_width(model, Budget(macs=0.3), batches=given) == plan
        planner = WidthAllocator(Session(model, given))
        planner.scores("gate_taylor")
        found = planner.plan(Budget(macs=0.3))
        assert find_groups(model, IMAGE).groups == planner.groups
        apply_plan(model, found)
    assert found == plan_width(cnn(), Budget(macs=0.3), batches=batches)
    assert not any(p.is_inference() for p in model.parameters())


class Detector(nn.Module):
    """Takes a list of images, and targets that evaluation mode does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = cnn()

    def forward(self, images: list[Tensor] | Tensor, targets: list[dict[str, Tensor]] | None = None) -> Tensor:
        return self.backbone(torch.stack(list(images)))


@pytest.mark.slow
def test_lists_of_images_plan_as_batched_ones(batches: Batches) -> None:
    def plan(inputs: list[Any]) -> Plan:
        pairs = list(zip(inputs, [y for _, y in batches], strict=True))
        return plan_width(Detector(), Budget(macs=0.3), batches=pairs, allocation="per_cost")

    assert plan([[*x] for x, _ in batches]).edits == plan([x for x, _ in batches]).edits


def test_budgets_in_units_leave_other_kinds_alone(batches: Batches) -> None:
    plan = plan_width(vit(), Budget(remove={"neuron": 7}), batches=batches)
    assert {edit.kind for edit in plan.edits} == {"neuron"}
    planner = WidthAllocator(Session(vit(), batches))
    assert {edit.kind for edit in planner.plan(Budget(remove={"head": 2})).edits} == {"head"}


def check_against_masked(model: nn.Module, plan: Plan) -> None:
    """Apply a plan and compare with a model whose removed units add zero: BatchNorms and rows of padded shortcuts."""
    masked = copy.deepcopy(model)
    apply_edits(masked, [edit for edit in plan.edits if edit.op == "rewrite"])
    for edit in plan.edits:
        for part in edit.group if edit.op == "narrow" else ():
            holder, _, name = part.tensor.rpartition(".")
            if part.makes and ("bn" in holder or "shortcut" in holder) and not name.startswith("running"):
                with torch.no_grad():
                    masked.get_submodule(holder).state_dict(keep_vars=True)[name][list(edit.gone)] = 0.0
    apply_plan(model, plan)
    images = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(model(images), masked(images), rtol=1e-4, atol=1e-4)


def test_what_was_narrowed_once_can_be_narrowed_again(batches: Batches) -> None:
    """Rewritten shortcuts still couple the residual channels, which can be removed."""

    def ties(model: nn.Module) -> dict[str, tuple[Any, ...]]:
        return {g.name: (g.kind, g.taps, [s.tensor for s in g.slices]) for g in find_groups(model, IMAGE).groups}

    model = cnn()
    before = ties(model)
    check_against_masked(model, plan_width(model, Budget(macs=0.3), batches=batches, replace="zero"))
    assert ties(model) == before
    again = plan_width(model, Budget(macs=0.5), batches=batches, replace="zero")
    assert {"conv1", "layer2.0.conv2", "layer3.0.conv2"} <= {edit.unit for edit in again.edits}
    check_against_masked(model, again)
    assert ties(model) == before


def test_tolerance_by_the_book(batches: Batches) -> None:
    model = cnn()
    planner = WidthAllocator(Session(model, batches))
    plan = planner.plan(rule=WidthRule(allocation="fair_pruner", tolerance=0.3))
    low, high = planner.scores("u_score", "r_score")
    for group in planner.groups:
        left, size = plan.evidence["kept"][group.name]
        assert size - left == min(removable(low[group.name], high[group.name], 0.3), size - 1)
    assert plan.evidence["tolerance"] == 0.3
    assert plan.made_by.method == "width/fair_pruner"
    for entered, bound in plan.evidence["protected_mass"].values():
        assert entered <= bound + 1e-12


def test_auxiliary_heads_of_training_still_run(batches: Batches) -> None:
    """Modules called only in training mode read the units, too."""

    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU())
            self.head, self.aux = nn.Linear(16, 4), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Any:
            features = self.body(x).mean((2, 3))
            return (self.head(features), self.aux(features)) if self.training else self.head(features)

    model = Auxiliary()
    apply_plan(model, plan_width(model, Budget(macs=0.4), batches=batches))
    assert [logits.shape for logits in model.train()(batches[0][0])] == [(16, 4), (16, 4)]
