"""Routed experts: groups, narrowed equals masked, plans meet budgets, and standard checkpoints."""

from __future__ import annotations

import copy
import itertools
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from cases.models.tiny import MIXTURES, tiny_llama, tiny_mixture
from cases.sampling import first, one_in
from cases.width.experts import EXPERTS, ONE_AND_TWO, TWO, UNGROUPED, counts, masked, text, tokens, without
from torch import Tensor, nn

from prunerecover import Budget, apply_plan, find_groups, load_pruned, plan_width, save_pruned
from prunerecover.callbacks import WidthPrune
from prunerecover.checkpoint.pruned_folder import standard_class
from prunerecover.cost.macs import count_macs
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.width.groups.experts import find_experts
from prunerecover.width.needed_experts import warn_of_needed_experts

# Groups


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_take_their_weights_and_their_place_in_the_router_along(name: str) -> None:
    one, two = find_experts(tiny_mixture(name))
    assert (one.name, two.name) == ("model.layers.0.mlp.experts", "model.layers.1.mlp.experts")
    made = {part.tensor.removeprefix("model.layers.0.mlp.") for part in one.slices if part.makes}
    read = {part.tensor.removeprefix("model.layers.0.mlp.") for part in one.slices if not part.makes}
    assert made == {"experts.gate_up_proj", "experts.down_proj"}
    assert read == {"gate.weight"} | ({"gate.e_score_correction_bias"} if name == "deepseek_v3" else set())
    grouped = name in ("deepseek_v2_grouped", "deepseek_v3")
    assert (one.size, one.at_least, one.strata, one.multiple) == ((8, 4, 2, 2) if grouped else (6, 2, 1, 1))


def test_layers_without_experts_are_passed_over() -> None:
    groups = find_experts(tiny_mixture("deepseek_v3", first_k_dense_replace=1))
    assert [group.name for group in groups] == ["model.layers.1.mlp.experts"]
    assert find_experts(tiny_llama()) == ()


def test_experts_are_found_without_values_and_inside_wrappers() -> None:
    model = tiny_mixture("mixtral")
    assert find_experts(nn.DataParallel(model)) == find_experts(model)
    assert find_experts(copy.deepcopy(model).to("meta")) == find_experts(model)


def test_experts_are_found_beside_other_kinds_when_asked_for() -> None:
    model = tiny_mixture("qwen2_moe")
    kinds = [group.kind for group in find_groups(model, {"input_ids": tokens()}, ("head", "neuron", "expert")).groups]
    assert {kind: kinds.count(kind) for kind in kinds} == {"head": 2, "neuron": 2, "expert": 2}


def test_modules_that_only_look_alike_are_not_experts() -> None:
    """Two 3-D parameters are no experts without a routed call, or without a router beside them."""

    class Block(nn.Module):
        def __init__(self, experts: nn.Module, gate: nn.Module) -> None:
            super().__init__()
            self.gate, self.experts, self.top_k = gate, experts, 1

    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Parameter(torch.zeros(3, 2, 2)), nn.Parameter(torch.zeros(3, 2, 2))

        def forward(self, x: Tensor) -> Tensor:
            return x

    class Routed(Fused):
        def forward(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
            return x

    assert find_experts(Block(Fused(), nn.Linear(2, 3))) == ()
    assert find_experts(Block(Routed(), nn.Linear(2, 4))) == ()
    (group,) = find_experts(Block(Routed(), nn.Linear(2, 3)))
    assert [part.tensor for part in group.slices] == ["experts.up", "experts.down", "gate.weight", "gate.bias"]


# Narrowed equals masked


@pytest.mark.parametrize(("name", "removed"), one_in(5, itertools.product(MIXTURES, [TWO, ONE_AND_TWO])))
def test_narrowed_equals_masked(name: str, removed: dict[str, tuple[int, ...]]) -> None:
    model, ids = tiny_mixture(name), tokens()
    if name.endswith(("grouped", "v3")):  # the groups 0-3 and 4-7 must stay alike
        removed = {**removed, "model.layers.0.mlp.experts": (3, 6)}
    with masked(model, removed) as reference:
        expected = reference(ids).logits
    dense = model(ids).logits
    applied = apply_edits(model, without(model, removed).edits)
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-5, atol=1e-5)
    assert (dense - expected).abs().max() > 1e-2
    undo(model, applied.journal)
    assert torch.equal(model(ids).logits, dense)


# Checkpoints


@pytest.mark.parametrize(("name", "how"), one_in(5, itertools.product(MIXTURES, ["save_pruned", "save_pretrained"])))
def test_layers_alike_make_a_standard_checkpoint(name: str, how: str, tmp_path: Path) -> None:
    model: Any = tiny_mixture(name)
    plan = without(model, TWO)
    apply_plan(model, plan)
    assert getattr(model, "num_experts", counts(model)[0]) == counts(model)[0]  # for the loss that balances
    if how == "save_pruned":
        save_pruned(model, plan, tmp_path)
    else:
        model.save_pretrained(tmp_path)
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is type(model)
    assert counts(loaded) == counts(model) == [6 if name.endswith(("grouped", "v3")) else 4] * 2
    for parameter in loaded.parameters():  # a mapped file is aligned otherwise, and kernels round otherwise then
        parameter.data = parameter.data.clone()
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(loaded.generate(tokens(), **settings), model.generate(tokens(), **settings))


@pytest.mark.parametrize("name", UNGROUPED)
def test_layers_that_differ_are_opened_by_load_pruned(name: str, tmp_path: Path) -> None:
    """No config can state the numbers of experts, so the config stays the same, and none is written."""
    model: Any = tiny_mixture(name)
    before = model.config.to_dict()
    plan = without(model, ONE_AND_TWO)
    apply_plan(model, plan)
    assert model.config.to_dict() == before
    save_pruned(model, plan, tmp_path)
    assert standard_class(tmp_path) is None
    loaded = load_pruned(tmp_path)
    assert counts(loaded) == [5, 4]
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)


def test_config_follows_once_all_layers_are_alike() -> None:
    """Layer by layer, by two plans; undoing restores the config."""
    model: Any = tiny_mixture("deepseek_v3")
    first, second = ({name: gone} for name, gone in {**TWO, "model.layers.1.mlp.experts": (1, 6)}.items())
    one = without(model, first)
    apply_plan(model, one)
    assert model.config.n_routed_experts == 8
    two = without(model, second)
    applied = apply_plan(model, two)
    assert model.config.n_routed_experts == 6
    undo(model, applied.journal)
    assert model.config.n_routed_experts == 8
    fresh: Any = tiny_mixture("deepseek_v3")
    apply_plan(fresh, one + two)
    assert fresh.config.n_routed_experts == 6


def test_edits_that_break_the_routing_are_refused() -> None:
    model, first = tiny_mixture("mixtral"), "model.layers.0.mlp.experts"
    with pytest.raises(ValueError, match=f"'{first}' to keep at least 2 experts, .* picks 2 per token, but 1 would"):
        without(model, {first: (0, 1, 2, 3, 4)})
    model = tiny_mixture("deepseek_v3")
    message = r"Expected the 2 groups of experts .* to keep equally many, but \[2, 4\] would be left"
    with pytest.raises(ValueError, match=message):
        without(model, {first: (0, 1)})


# Planning


ALLOCATIONS = ("per_cost", "fair_pruner", "uniform", "global")
IN_TURN = [(name, ALLOCATIONS[i % 4]) for i, name in enumerate(MIXTURES)]
OTHERS = [(name, ALLOCATIONS[(i + 2) % 4]) for i, name in enumerate(MIXTURES)]


@pytest.mark.parametrize(("name", "allocation"), first(2, IN_TURN))
def test_budgets_are_met(name: str, allocation: Any) -> None:
    model, batches = tiny_mixture(name), text()
    step = 2 if name.endswith(("grouped", "v3")) or allocation == "uniform" else 1  # one of each of two layers
    plan = plan_width(model, Budget(params=0.1), batches=batches, kinds=EXPERTS, allocation=allocation)
    dense = sum(p.numel() for p in model.parameters())
    first = ("model.layers.0.mlp.experts", "model.layers.0.mlp.gate")
    expert = sum(p[0].numel() for n, p in model.named_parameters() if n.startswith(first))
    assert 0.1 <= 1 - plan.result.params / dense < 0.1 + step * expert / dense
    assert plan.result.macs < count_macs(model, {"input_ids": tokens(1)})
    share = 4 / sum(counts(model))
    for budget in (Budget(remove={"expert": 4}), Budget(ratio={"expert": share})):
        plan = plan_width(model, budget, batches=batches, allocation=allocation)
        assert len(plan.removed["expert"]) == 4
    apply_plan(model, plan)
    assert torch.isfinite(model(tokens()).logits).all()


def test_a_layer_with_fewer_experts_than_share_its_work_is_named() -> None:
    """Two experts do all the work of the first layer, four of six that of the second: see `effective_number`."""
    model: Any = tiny_mixture("mixtral")
    shares = torch.tensor([[0, 5, 0, 0, 5, 0], [1, 1, 0, 1, 1, 0.0]])
    scores = {group.name: own for group, own in zip(find_experts(model), shares, strict=True)}
    removed = {name: torch.tensor([0, 2, 3]) for name in scores}
    message = (
        "Layers keep fewer experts than share their work, by routing: model.layers.1.mlp.experts keeps 3 of 6, about 4 "
        "share its work. Remove fewer experts, or train afterwards."
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        warn_of_needed_experts(find_experts(model), removed, "routing", lambda _: (scores,))
    removed["model.layers.1.mlp.experts"] = torch.tensor([2, 5])
    with warnings.catch_warnings(action="error"):
        warn_of_needed_experts(find_experts(model), removed, "routing", lambda _: (scores,))


@pytest.mark.parametrize("importance", ["gate_taylor", "reap"])
def test_plans_warn_of_needed_experts(importance: str) -> None:
    by = "gate_taylor" if importance == "gate_taylor" else "routing"
    model, how = tiny_mixture("mixtral"), {"allocation": "uniform", "importance": importance}
    with pytest.warns(UserWarning, match=rf"Layers keep fewer experts than share their work, by {by}: model"):
        plan_width(model, Budget(remove={"expert": 8}), batches=text(2), **how)


# Refusals


@pytest.mark.parametrize(("name", "allocation"), first(2, OTHERS))
def test_more_experts_than_the_routing_needs_stay(name: str, allocation: Any) -> None:
    model = tiny_mixture(name)
    total, needed = sum(counts(model)), sum(group.at_least for group in find_experts(model))
    most, how = total - needed, {"batches": text(2), "allocation": allocation}
    message = rf"{most + 1} of {total} experts, but at most {most} can go. The router of 'model"
    with pytest.raises(ValueError, match=message):
        plan_width(model, Budget(remove={"expert": most + 1}), **how)
    with pytest.raises(ValueError, match=r"at most \d+\.\d% can go. The router of 'model.layers.0.mlp.experts' needs"):
        plan_width(model, Budget(params=0.9), kinds=EXPERTS, **how)
    apply_plan(model, plan_width(model, Budget(remove={"expert": most}), **how))
    assert sum(counts(model)) == needed


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
