"""REAP against computation by hand, token by token and expert by expert."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_mixture
from cases.width.experts import text
from cases.width.scores import context
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import Budget, plan_width
from prunerecover.importance.experts import reap, reap_normalised
from prunerecover.width.groups.experts import find_experts

FAMILIES = ("mixtral", "deepseek_v3")


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


def by_hand(model: nn.Module, batches: list[dict[str, Tensor]], *, normalised: bool = False) -> dict[str, Tensor]:
    """Return the mean of weight x norm over the tokens of each expert; hooks record every expert's output."""
    groups, products = find_experts(model), dict[tuple[str, int], list[float]]()

    def before(path: str) -> Any:
        modules, seen = experts_as_modules(model.get_submodule(path)), list[float]()
        for module in modules:
            module.register_forward_hook(lambda _, __, output: seen.append(float(output.norm())))

        def hook(_: nn.Module, args: tuple[Tensor, Tensor, Tensor]) -> None:
            for token, index, weights in zip(*args, strict=True):
                shares = weights / weights.sum() if normalised else weights
                for expert, weight in zip(index.tolist(), shares.tolist(), strict=True):
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


@pytest.mark.parametrize("name", [*FAMILIES, "deepseek_v2"])
def test_normalised_weights_add_up_to_one_where_the_layer_leaves_less(name: str) -> None:
    model, batches = tiny_mixture(name), text(2)
    scored = context(model, find_experts(model), batches)
    found, plain = reap_normalised(scored), reap(scored)
    for path, expected in by_hand(model, batches, normalised=True).items():
        torch.testing.assert_close(found[path], expected, rtol=1e-4, atol=1e-7)
        assert torch.allclose(found[path], plain[path]) == (name == "mixtral")  # its layers normalise


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


def test_the_lowest_of_a_layer_go() -> None:
    model, batches = tiny_mixture("mixtral"), text()
    plan = plan_width(
        model, Budget(remove={"expert": 4}), batches=batches, importance="reap", allocation="uniform", replace="zero"
    )
    expected = by_hand(model, [{"input_ids": batch["input_ids"]} for batch in batches])
    for edit in plan.edits:
        assert edit.op == "narrow"
        assert set(edit.gone) == set(expected[edit.unit].argsort()[:2].tolist())
