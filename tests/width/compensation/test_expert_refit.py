"""Experts that take over the work of removed experts: nothing to take over, twins, and least squares by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_mixture
from cases.width.experts import EXPERTS, text, without
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import Budget, apply_plan, plan_width
from prunerecover.apply import refit_plan
from prunerecover.plan.edits import Refit
from prunerecover.session.session import Session
from prunerecover.width.expert_refit import expert_refits, narrowed_experts

FIRST = "model.layers.0.mlp.experts"


def refitted(model: nn.Module, batches: list[dict[str, Tensor]], gone: tuple[int, ...]) -> nn.Module:
    """Return a copy without experts of the first layer, with the others refitted."""
    plan = without(model, {FIRST: gone})
    refits, tensors = expert_refits(Session(model, batches), plan.edits, {})
    pruned = copy.deepcopy(model)
    apply_plan(pruned, plan.model_copy(update={"edits": (*plan.edits, *refits)}).with_tensors(tensors))
    return pruned


def outputs(model: nn.Module, batches: list[dict[str, Tensor]]) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(input_ids=batch["input_ids"]).logits for batch in batches])


def test_an_expert_with_a_twin_goes_without_a_trace() -> None:
    model: Any = tiny_mixture("mixtral", num_experts_per_tok=1)
    batches = text()
    experts, router = model.get_submodule(FIRST), model.get_submodule(FIRST.replace("experts", "gate"))
    experts.gate_up_proj.data[1], experts.down_proj.data[1] = experts.gate_up_proj.data[4], experts.down_proj.data[4]
    router.weight.data[4] = (1 + 1e-5) * router.weight.data[1]  # preferred to its twin
    pruned: Any = refitted(model, batches, (4,))
    torch.testing.assert_close(outputs(pruned, batches), outputs(model, batches), rtol=1e-4, atol=1e-5)
    kept = experts.down_proj[[0, 1, 2, 3, 5]]
    torch.testing.assert_close(pruned.get_submodule(FIRST).down_proj, kept, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_the_gap_is_nearly_the_least_possible(name: str) -> None:
    """Expected: least squares over all kept experts together, from activations computed token by token."""
    model, batches = tiny_mixture(name), text(32)
    gone = (2, 6) if name == "deepseek_v3" else (2, 5)
    dropped: Any = copy.deepcopy(model)
    apply_plan(dropped, without(model, {FIRST: gone}))
    calls: list[tuple[Tensor, ...]] = []
    for network in (model, dropped, refitted(model, batches, gone)):
        hook = lambda _, args, output: calls.append((*args, output))  # noqa: E731
        handle = network.get_submodule(FIRST).register_forward_hook(hook)
        outputs(network, [{"input_ids": torch.cat([batch["input_ids"] for batch in batches])}])
        handle.remove()
    (*_, dense), (tokens, index, weights, before), (*_, after) = calls
    experts = dropped.get_submodule(FIRST)
    rows = torch.zeros(len(tokens), len(experts.down_proj), experts.down_proj.shape[2], dtype=torch.float64)
    for row, token, own, shares in zip(rows, tokens, index.tolist(), weights.tolist(), strict=True):
        for expert, share in zip(own, shares, strict=True):
            gate, up = (experts.gate_up_proj[expert].detach() @ token).chunk(2)
            row[expert] = share * F.silu(gate) * up
    gap = (dense - before).double()
    best = gap - rows.flatten(1) @ torch.linalg.lstsq(rows.flatten(1), gap, driver="gelsd").solution
    assert best.norm() <= (dense - after).norm() < 0.5 * (best.norm() + gap.norm())


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3"])
def test_plans_hold_the_refitted_experts_and_are_fitted_again(name: str) -> None:
    model, batches = tiny_mixture(name), text()
    budget = Budget(remove={"expert": 4})
    plan, zero = (plan_width(model, budget, batches=batches, replace=how) for how in ("calibrated", "zero"))
    refits = [edit for edit in plan.edits if isinstance(edit, Refit)]
    assert plan.edits[: len(zero.edits)] == zero.edits
    assert [edit.unit for edit in refits] == narrowed_experts(zero.edits)
    again = refit_plan(model, plan, batches)
    assert again.edits == plan.edits
    for key, tensor in plan.tensors.items():
        torch.testing.assert_close(again.tensors[key], tensor)


def test_padding_is_not_fitted_to() -> None:
    model, (batch, *_) = tiny_mixture("mixtral"), text(1, 16)
    mask = torch.ones_like(batch["input_ids"])
    mask[:, 5:] = 0
    other = torch.where(mask == 1, batch["input_ids"], 7)
    edits = without(model, {FIRST: (1, 2)}).edits
    (first,), (second,) = (
        expert_refits(Session(model, [{"input_ids": ids, "attention_mask": mask}]), edits, {})[1].values()
        for ids in (batch["input_ids"], other)
    )
    torch.testing.assert_close(first, second)


def test_experts_of_another_formula_and_few_samples_stay() -> None:
    model: Any = tiny_mixture("mixtral")
    kind = type(model.get_submodule(FIRST))

    class Doubled(kind):  # type: ignore[misc, valid-type]
        def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
            output: Tensor = super().forward(hidden_states, top_k_index, top_k_weights)
            return 2 * output

    model.get_submodule(FIRST).__class__ = Doubled
    edits = without(model, {FIRST: (1,), FIRST.replace("0", "1"): (2,)}).edits
    assert [edit.unit for edit in expert_refits(Session(model, text()), edits, {})[0]] == [FIRST.replace("0", "1")]
    plan = plan_width(tiny_mixture("mixtral"), Budget(remove={"expert": 2}), batches=text(1), kinds=EXPERTS)
    assert not plan.tensors
