"""REAP against computation by hand, token by token and expert by expert."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_llama, tiny_mixture
from cases.width.experts import counts, text
from cases.width.scores import context
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import Budget, apply_plan, find_groups, plan_width
from prunerecover.callbacks import WidthPrune
from prunerecover.importance.experts import reap
from prunerecover.recipes.plan_methods.width import PerCostPlan
from prunerecover.width.groups.experts import find_experts

FAMILIES = ("mixtral", "qwen3_moe", "deepseek_v3")


def experts_as_modules(fused: Any) -> nn.ModuleList:
    """Return the experts as separate modules, as before they were fused."""

    class Expert(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.gate, self.up = (nn.Parameter(w.clone()) for w in fused.gate_up_proj[number].detach().chunk(2))
            self.down = nn.Parameter(fused.down_proj[number].detach().clone())

        def forward(self, token: Tensor) -> Tensor:
            return F.linear(fused.act_fn(F.linear(token, self.gate)) * F.linear(token, self.up), self.down)

    return nn.ModuleList(Expert(i) for i in range(len(fused.down_proj)))


def by_hand(model: nn.Module, batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of weight x norm over the tokens of each expert; hooks record every expert's output."""
    groups, products = find_experts(model), dict[tuple[str, int], list[float]]()

    def before(path: str) -> Any:
        modules, seen = experts_as_modules(model.get_submodule(path)), list[float]()
        for module in modules:
            module.register_forward_hook(lambda _, __, output: seen.append(float(output.norm())))

        def hook(_: nn.Module, args: tuple[Tensor, Tensor, Tensor]) -> None:
            for token, index, weights in zip(*args, strict=True):
                for expert, weight in zip(index.tolist(), weights.tolist(), strict=True):
                    modules[expert](token)
                    products.setdefault((path, expert), []).append(weight * seen[-1])

        return hook

    handles = [model.get_submodule(g.name).register_forward_pre_hook(before(g.name)) for g in groups]
    with torch.no_grad():
        for batch in batches:
            model(**batch)
    for handle in handles:
        handle.remove()
    means = {key: sum(values) / len(values) for key, values in products.items()}
    return {g.name: torch.tensor([means.get((g.name, i), 0.0) for i in range(g.size)]).double() for g in groups}


@pytest.mark.parametrize("name", FAMILIES)
def test_reap_is_the_mean_weight_times_norm_over_the_tokens_of_an_expert(name: str) -> None:
    model, batches = tiny_mixture(name), text(2)
    found, expected = reap(context(model, find_experts(model), batches)), by_hand(model, batches)
    assert list(found) == list(expected)
    for path, scores in found.items():
        torch.testing.assert_close(scores, expected[path], rtol=1e-4, atol=1e-7)


def test_what_many_tokens_visit_is_not_more_important_by_that() -> None:
    """Unlike the routing frequency, REAP is a mean: twice the batches give the same scores."""
    model, batches = tiny_mixture("mixtral"), text(2)
    once, twice = (reap(context(model, find_experts(model), b)) for b in (batches, batches * 2))
    for path, scores in once.items():
        torch.testing.assert_close(scores, twice[path])


def test_an_expert_that_no_token_visits_goes_first() -> None:
    model: Any = tiny_mixture("mixtral")
    group, alone = find_experts(model)[0], [{"input_ids": torch.tensor([[5]]), "labels": torch.tensor([[5]])}]
    scores = reap(context(model, [group], alone))[group.name]
    assert int((scores > 0).sum()) == 2
    assert float(scores.min()) == 0


def test_padding_is_left_out() -> None:
    model, ids = tiny_mixture("mixtral"), text(1)[0]["input_ids"]
    mask = torch.ones_like(ids)
    mask[:, 5:] = 0
    short, padded = (
        reap(context(model, find_experts(model), [batch]))
        for batch in ({"input_ids": ids[:, :5]}, {"input_ids": ids, "attention_mask": mask})
    )
    for path, scores in short.items():
        torch.testing.assert_close(scores, padded[path], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("allocation", ["per_cost", "uniform", "global"])
def test_experts_go_by_name(allocation: str) -> None:
    model = tiny_mixture("qwen3_moe")
    plan = plan_width(
        model, Budget(remove={"expert": 4}), batches=text(), kinds="expert", importance="reap", allocation=allocation
    )
    assert plan.made_by.arguments["importance"] == "reap"
    apply_plan(model, plan)
    assert sum(counts(model)) == 8


def test_the_lowest_of_a_layer_go() -> None:
    model, batches = tiny_mixture("mixtral"), text()
    plan = plan_width(
        model, Budget(remove={"expert": 4}), batches=batches, importance="reap", allocation="uniform", replace="zero"
    )
    expected = by_hand(model, [{"input_ids": batch["input_ids"]} for batch in batches])
    for edit in plan.edits:
        assert edit.op == "narrow"
        assert set(edit.gone) == set(expected[edit.unit].argsort()[:2].tolist())


def test_reap_is_for_experts_only() -> None:
    model = tiny_llama()
    groups = find_groups(model, text(1)[0]).groups
    with pytest.raises(ValueError, match="Expected routed experts for 'reap', but 'model.* is a group of kind"):
        reap(context(model, groups, text(1)))


def test_callback_and_command_line_know_the_name() -> None:
    budget = {"expert": 2}
    assert WidthPrune(Budget(remove=budget), importance="reap").config.importances == ("reap",)
    assert PerCostPlan(remove=budget, importance="reap").config.importances == ("reap",)
