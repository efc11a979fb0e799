"""Layers that keep one number of units are a standard model, which transformers opens."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_inputs, tiny_llama
from cases.sampling import one_in
from cases.width.plan_width import cnn, labelled_batches, removed_share
from transformers import LlamaForCausalLM

from prunerecover import Budget, Plan, apply_plan, find_groups, plan_width, save_pruned

IDS = torch.randint(3, 61, (8, 9), generator=torch.Generator().manual_seed(0))
TEXT = [{"input_ids": IDS, "labels": IDS}]
QUICK: dict[str, Any] = {"importance": "magnitude", "replace": "zero"}
BUDGETS = [Budget(**{cost: share}) for cost in ("macs", "params") for share in (0.11, 0.23, 0.37)]


def llama() -> Any:
    return tiny_llama(hidden_size=32, intermediate_size=96)


def numbers_kept(plan: Plan) -> dict[Any, set[int]]:
    """Numbers that stay, by kind and size."""
    found: dict[Any, set[int]] = defaultdict(set)
    for group in plan.kept_groups:
        found[group.kind, group.size].add(group.kept)
    return dict(found)


@pytest.mark.parametrize("budget", one_in(5, BUDGETS), ids=str)
def test_uniform_makes_a_standard_model_at_every_budget(budget: Budget, tmp_path: Path) -> None:
    model = llama()
    plan = plan_width(model, budget, batches=TEXT, allocation="uniform", **QUICK)
    assert all(len(numbers) == 1 for numbers in numbers_kept(plan).values())
    apply_plan(model, plan)
    again = LlamaForCausalLM.from_pretrained(save_pruned(model, plan, tmp_path / "pruned")).eval()
    for parameter in again.parameters():  # a mapped file is aligned otherwise, and kernels round otherwise then
        parameter.data = parameter.data.clone()
    with torch.no_grad():
        assert torch.equal(again(input_ids=IDS).logits, model(input_ids=IDS).logits)


@pytest.mark.parametrize("allocation", ["per_cost", "global", "tolerance"])
def test_any_allocation_can_keep_equal_layers(allocation: str) -> None:
    settings = {} if allocation == "tolerance" else QUICK
    model = cnn()
    plan = plan_width(
        model, Budget(macs=0.3), batches=labelled_batches(), allocation=allocation, equal_layers=True, **settings
    )
    assert all(len(numbers) == 1 for numbers in numbers_kept(plan).values())
    assert 0.3 <= removed_share(model, plan, "macs") < 0.36
    assert plan.made_by.arguments["equal_layers"]


def test_equal_layers_with_a_tolerance() -> None:
    settings: Any = {"allocation": "tolerance", "tolerance": 0.2, "equal_layers": True}
    plan = plan_width(cnn(), batches=labelled_batches(), **settings)
    assert all(len(numbers) == 1 for numbers in numbers_kept(plan).values())


@pytest.mark.slow
def test_equal_layers_meet_budgets_in_units_by_less_than_a_unit_of_each() -> None:
    model = llama()
    layers = len(find_groups(model, {"input_ids": IDS}, ("neuron",)).groups)
    plan = plan_width(model, Budget(remove={"neuron": 4 * layers - 1}), batches=TEXT, equal_layers=True, **QUICK)
    assert len(plan.removed["neuron"]) == 4 * layers


def test_uniform_meets_budgets_in_units_to_the_unit() -> None:
    plan = plan_width(llama(), Budget(remove={"neuron": 14}), batches=TEXT, allocation="uniform", **QUICK)
    assert len(plan.removed["neuron"]) == 14


def test_more_units_than_were_asked_for_are_said() -> None:
    model = tiny_llama()
    settings: dict[str, Any] = {"kinds": "neuron", "importance": "magnitude", "replace": "zero", "equal_layers": True}
    with pytest.warns(UserWarning, match=r"4 of 192 neurons go \(2\.1%\), not the 3 \(1\.6%\) that were asked for"):
        plan_width(model, Budget(remove={"neuron": 3}), batches=[tiny_inputs("text")], **settings)
