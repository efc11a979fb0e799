"""Arguments of `plan_width`, valid and refused, by message; equal layers; and allocations with the library."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_llama
from cases.sampling import one_in
from cases.width.plan_width import IMAGE, cnn, labelled_batches, removed_share, vit
from torch import nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from prunerecover import (
    Budget,
    Plan,
    apply_plan,
    find_groups,
    find_sites,
    find_units,
    plan_depth,
    plan_pruning,
    plan_width,
    save_pruned,
)
from prunerecover.importance.measuring.losses import supervised_loss
from prunerecover.refusal import Refusal

IDS = torch.randint(3, 61, (8, 9), generator=torch.Generator().manual_seed(0))
LABELLED, TENTH = labelled_batches(), Budget(macs=0.1)
FAIR = {"allocation": "fair_pruner"}


def test_default_loss_is_the_cross_entropy_or_a_language_models_own() -> None:
    model, (images, labels) = cnn(), LABELLED[0]
    assert torch.equal(supervised_loss(model, (images, labels)), F.cross_entropy(model(images), labels))
    language, batch = tiny_llama(), {"input_ids": IDS, "labels": IDS}
    assert torch.equal(supervised_loss(language, batch), language(**batch).loss)


@pytest.mark.slow
@pytest.mark.parametrize("key", one_in(2, ["label", "labels"]))
def test_labels_in_mappings_are_not_fed_to_the_network(key: str) -> None:
    model, mappings = cnn(), [{"x": images, key: labels} for images, labels in LABELLED]
    plans = [plan_width(model, Budget(macs=0.3), batches=batches) for batches in (mappings, LABELLED)]
    assert plans[0] == plans[1]
    assert find_groups(model, mappings[0]) == find_groups(model, LABELLED[0])
    assert supervised_loss(model, mappings[0]) == supervised_loss(model, LABELLED[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"Expected a budget, such as Budget\(macs=0.3\), and not both"),
        ({"budget": TENTH, "tolerance": 0.1}, "Expected a tolerance with allocation='fair_pruner'"),
        ({"budget": TENTH, "tolerance": 0.1, **FAIR}, "a budget or a tolerance, and not both"),
        ({"budget": TENTH, "allocation": "best"}, "Expected allocation among per_cost, .*, but got 'best'"),
        ({"budget": TENTH, "importance": "gate_gradient"}, ".*'gate_gradient', which scores units of depth"),
        (
            {"budget": TENTH, "importance": ["u_score", "r_score"]},
            "Expected one importance for allocation='per_cost', but got u_score, r_score. Two are for",
        ),
        ({"budget": Budget(ratio={"mlp": 0.1})}, "a budget in a share of macs, params or latency, or in units"),
        ({"budget": Budget(remove={"head": 1, "neuron": 2})}, "in units of one kind among channel, .* add plans"),
        ({"budget": Budget(remove={"head": 1})}, "to have groups of kind head, but it has [0-9]* of kind channel"),
        ({"budget": Budget(remove={"channel": 9999})}, "Expected at most [0-9]* units of kind 'channel' to remove"),
        ({"budget": Budget(ratio={"channel": 0.99})}, "groups can meet, .* channels, but at most [0-9]* can go"),
        ({"budget": Budget(macs=0.99)}, "at most 9.* can go"),
        ({"budget": TENTH, "ignore": "layer9.*"}, "'layer9.*' matches none"),
        ({"budget": TENTH, "kinds": ("block",)}, "Expected kinds among channel, head, neuron"),
        ({"tolerance": 1.5, **FAIR}, "Expected a tolerance between 0 and 1, but got 1.5"),
        ({"budget": TENTH, "ignore": "*"}, r"Expected some groups outside ignore=\['\*'\], but all 6 are ignored"),
        (
            {"budget": TENTH, "batches": [images for images, _ in LABELLED], "importance": "u_score"},
            r"Expected labelled batches for the U-Score, .* Pass labels=",
        ),
        (
            {"budget": TENTH, "batches": [(images, labels[:, None].expand(-1, 7)) for images, labels in LABELLED]},
            r"labels that fit logits of shape \(16, 4\), but got shape \(16, 7\)",
        ),
        ({"batches": [(x, torch.zeros_like(y)) for x, y in LABELLED], "budget": TENTH, **FAIR}, "class"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_width(cnn(), **{"batches": LABELLED, **arguments})


@pytest.mark.parametrize(
    ("model", "holds"),
    [(nn.Sequential(nn.ReLU()), "modules without any"), (nn.Identity(), "nothing"), (nn.ModuleList(), "nothing")],
    ids=["relu", "identity", "empty"],
)
def test_a_model_without_parameters_has_nothing_that_may_go(model: nn.Module, holds: str) -> None:
    message = f"Expected a network with parameters, but {type(model).__name__} has none: it holds {holds}. Pass the "
    for look in (
        lambda: plan_width(model, Budget(macs=0.3), batches=LABELLED),
        lambda: plan_depth(model, remove={"block": 1}, batches=LABELLED),
        lambda: find_sites(model, IMAGE),
        lambda: find_groups(model, IMAGE),
        lambda: find_units(model, IMAGE),
    ):
        with pytest.raises(Refusal, match=message):
            look()


def test_budget_in_steps_needs_a_share_or_a_number() -> None:
    with pytest.raises(ValueError, match="Expected a budget in a share of cost or a number of units, but got {'ratio'"):
        Budget(ratio={"head": 0.2}).in_steps(2)


KINDS = ("neuron", "head")


@pytest.mark.slow
@pytest.mark.parametrize("cost", ["macs", "params"])
def test_the_plan_is_that_of_pruning_by_the_same_kinds(cost: str) -> None:
    budget = Budget(**{cost: 0.3})
    found, shared = (plan(vit(), budget, batches=LABELLED, kinds=KINDS) for plan in (plan_width, plan_pruning))
    assert found.made_by.method == "width/program"
    assert found.edits == shared.edits
    assert all(torch.equal(value, shared.tensors[name]) for name, value in found.tensors.items())
    assert 0.3 <= removed_share(vit(), found, cost) < 0.33


def test_heads_get_smaller_where_no_kinds_are_named() -> None:
    model = vit()
    plan = plan_width(model, Budget(macs=0.6), batches=LABELLED)
    assert "head_dim" in plan.removed
    assert set(plan.made_by.arguments["kinds"]) == {"channel", "head", "neuron"}
    apply_plan(model, plan)
    assert model(LABELLED[0][0]).shape == (16, 4)


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
    plan = plan_width(make(), Budget(params=0.2), batches=LABELLED, **how)
    assert plan.made_by.method == "width/per_cost"


TEXT = [{"input_ids": IDS, "labels": IDS}]
QUICK: dict[str, Any] = {"importance": "magnitude", "replace": "zero"}


def llama() -> Any:
    return tiny_llama(hidden_size=32, intermediate_size=96)


def numbers_kept(plan: Plan) -> dict[Any, set[int]]:
    """Return the kept sizes, by kind and size."""
    found: dict[Any, set[int]] = defaultdict(set)
    for group in plan.kept_groups:
        found[group.kind, group.size].add(group.kept)
    return dict(found)


@pytest.mark.parametrize("budget", [Budget(macs=0.23), Budget(params=0.11)], ids=str)
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


@pytest.mark.parametrize("allocation", ["per_cost", "global", "fair_pruner"])
def test_any_allocation_can_keep_equal_layers(allocation: str) -> None:
    settings = {} if allocation == "fair_pruner" else QUICK
    model = cnn()
    plan = plan_width(model, Budget(macs=0.3), batches=LABELLED, allocation=allocation, equal_layers=True, **settings)
    assert all(len(numbers) == 1 for numbers in numbers_kept(plan).values())
    assert 0.3 <= removed_share(model, plan, "macs") < 0.36
    assert plan.made_by.arguments["equal_layers"]


def test_uniform_meets_budgets_in_units_to_the_unit_and_equal_layers_say_how_many_more_go() -> None:
    budget, model = Budget(remove={"neuron": 14}), llama()
    plan = plan_width(model, budget, batches=TEXT, allocation="uniform", **QUICK)
    assert len(plan.removed["neuron"]) == 14
    with pytest.warns(UserWarning, match=r"16 of 384 neurons go \(4\.2%\), not the 14 \(3\.6%\) requested"):
        plan = plan_width(model, budget, batches=TEXT, equal_layers=True, **QUICK)
    assert len(plan.removed["neuron"]) == 16
