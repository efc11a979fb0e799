"""Plans for routed experts: budgets are met, standard models come out, and what is refused."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from cases.models.tiny import MIXTURES, tiny_llama, tiny_mixture
from cases.sampling import one_in
from cases.width.experts import EXPERTS, counts, text, tokens

from prunerecover import Budget, apply_plan, plan_width
from prunerecover.callbacks import WidthPrune
from prunerecover.cost.macs import count_macs
from prunerecover.width.groups.experts import find_experts

# Planning


EACH = [*itertools.product(MIXTURES, ["per_cost", "tolerance", "uniform", "global"])]
EVEN = [case for place, case in enumerate(EACH) if (place + place // 4) % 2 == 0]  # of each mixture, two in turn
ODD = [case for case in EACH if case not in EVEN]


@pytest.mark.parametrize(("name", "allocation"), one_in(5, EVEN))
def test_budgets_are_met(name: str, allocation: Any) -> None:
    model, batches = tiny_mixture(name), text()
    step = 2 if name.endswith(("grouped", "v3")) or allocation == "uniform" else 1  # one of each of two layers
    plan = plan_width(model, Budget(params=0.1), batches=batches, kinds=EXPERTS, allocation=allocation)
    dense = sum(p.numel() for p in model.parameters())
    first = ("model.layers.0.mlp.experts", "model.layers.0.mlp.gate")
    expert = sum(p[0].numel() for n, p in model.named_parameters() if n.startswith(first))
    assert 0.1 <= 1 - plan.result.params / dense < 0.1 + step * expert / dense
    assert plan.result.macs < count_macs(model, {"input_ids": tokens(1)})
    for budget in (
        Budget(remove={"expert": 4}),
        Budget(ratio={"expert": 0.25 if name.endswith(("grouped", "v3")) else 1 / 3}),
    ):
        plan = plan_width(model, budget, batches=batches, allocation=allocation)
        assert sum(len(edit.gone) for edit in plan.edits) == 4
    pruned = copy.deepcopy(model)
    apply_plan(pruned, plan)
    assert torch.isfinite(pruned(tokens()).logits).all()


def test_uniform_makes_a_standard_model() -> None:
    model: Any = tiny_mixture("qwen3_moe")
    apply_plan(model, plan_width(model, Budget(remove={"expert": 4}), batches=text(), allocation="uniform"))
    assert counts(model) == [4, 4]
    assert model.config.num_experts == 4


def test_experts_go_with_other_kinds() -> None:
    model, kinds = tiny_mixture("qwen2_moe"), ("head", "neuron", "expert")
    plan = plan_width(model, Budget(params=0.3), batches=text(), kinds=kinds, allocation="uniform")
    assert {edit.kind for edit in plan.edits} == set(kinds)
    apply_plan(model, plan)
    assert torch.isfinite(model(tokens()).logits).all()


def test_the_model_is_bit_identical_afterwards() -> None:
    model = tiny_mixture("deepseek_v3").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config, state = copy.deepcopy(model.config.to_dict()), torch.get_rng_state()
    plan_width(model, Budget(remove={"expert": 4}), batches=text(), allocation="tolerance")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.config.to_dict() == config
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


# What is refused


@pytest.mark.parametrize(("name", "allocation"), one_in(5, ODD))
def test_more_experts_than_the_routing_needs_stay(name: str, allocation: Any) -> None:
    model = tiny_mixture(name)
    total, needed = sum(counts(model)), sum(group.at_least for group in find_experts(model))
    plan = plan_width(model, Budget(remove={"expert": total - needed}), batches=text(2), allocation=allocation)
    apply_plan(model, plan)
    assert sum(counts(model)) == needed
    message = rf"{total - needed + 1} of {total} experts, but at most {total - needed} can go. The router of 'model"
    with pytest.raises(ValueError, match=message):
        plan_width(
            tiny_mixture(name),
            Budget(remove={"expert": total - needed + 1}),
            batches=text(2),
            allocation=allocation,
        )
    with pytest.raises(ValueError, match=r"at most \d+\.\d% can go. The router of 'model.layers.0.mlp.experts' needs"):
        plan_width(tiny_mixture(name), Budget(params=0.9), batches=text(2), kinds=EXPERTS, allocation=allocation)


@pytest.mark.parametrize("budget", [Budget(macs=0.2), Budget(latency=0.2)])
def test_experts_save_no_macs(budget: Budget) -> None:
    message = r"Expected a budget of params or units for experts, but got .* For example Budget\(params=0.2\)"
    with pytest.raises(ValueError, match=message):
        plan_width(tiny_mixture("mixtral"), budget, batches=text(1), kinds=EXPERTS)
    with pytest.raises(ValueError, match=message):
        WidthPrune(budget, kinds=EXPERTS)


def test_more_experts_than_there_are() -> None:
    with pytest.raises(ValueError, match="Expected at most 12 units of kind 'expert' to remove, but got 13"):
        plan_width(tiny_mixture("mixtral"), Budget(remove={"expert": 13}), batches=text(1))
    with pytest.raises(ValueError, match="Expected LlamaForCausalLM to have groups of kind expert, but it has none"):
        plan_width(tiny_llama(), Budget(remove={"expert": 1}), batches=text(1))
