"""One budget over depth and width: it is met, the best split is taken, and the plan is one like any other."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_llama, tiny_mixture
from cases.shared_budget.networks import IMAGE, Residual, cnn, images, left, vit
from cases.width.experts import text
from torch import nn

from prunerecover import (
    Budget,
    Plan,
    apply_plan,
    load_pruned,
    plan_depth,
    plan_pruning,
    plan_width,
    recalibrate_batchnorm,
    save_pruned,
)
from prunerecover.apply import refit_plan
from prunerecover.model.batches import ModelInputs, split_batches
from prunerecover.plan.edits import Narrow
from prunerecover.plan.evidence import SplitEvidence
from prunerecover.recovery.reconstruction import fit_layers
from prunerecover.session.pruned_output import judge_of
from prunerecover.session.session import Session
from prunerecover.shared_budget.arguments import SharedBudgetConfig
from prunerecover.shared_budget.planner import SharedBudgetPlanner
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.width.compensation import fitted_tensors
from prunerecover.width.tuning import tuned_tensors

HALF = Budget(macs=0.5)
MANY = images(6)  # enough to tune what weights take over


@pytest.fixture(scope="module")
def both() -> Plan:
    """A plan in which half of the budget goes in depth, and the other half in width."""
    planner = SharedBudgetPlanner(Session(vit(), MANY), "macs", SharedBudgetConfig())
    return planner.finished(planner.together(0.25, 0.5))


@dataclass(frozen=True)
class Planned:
    """A model, what it was before it was planned for, and its plan."""

    model: nn.Module
    before: dict[str, tuple[int, torch.Tensor]]
    modules: list[int]
    plan: Plan


@pytest.fixture(scope="module")
def planned() -> Planned:
    """Plan with the default arguments."""
    model = vit(depth=2).train()
    before = {name: (id(value), value.detach().clone()) for name, value in model.named_parameters()}
    modules, state = [id(module) for module in model.modules()], torch.get_rng_state()
    plan = plan_pruning(model, HALF, batches=images())
    assert torch.equal(torch.get_rng_state(), state)
    return Planned(model, before, modules, plan)


def test_budget_is_met_by_the_merged_network(planned: Planned) -> None:
    pruned = copy.deepcopy(planned.model)
    apply_plan(pruned, planned.plan)
    assert 0.4 < left(planned.model, pruned) < 0.51
    assert planned.plan.made_by.method == "joint"
    assert planned.plan.made_by.arguments["budget"] == {"macs": 0.5}


def test_splits_that_were_tried_are_told_and_the_best_is_planned(planned: Planned) -> None:
    found = SplitEvidence.of(planned.plan.evidence)
    shares = [one.depth for one in found.splits]
    assert shares[:3] == [0.0, 1.0, 0.5]
    divergences = {one.depth: math.inf if one.divergence is None else one.divergence for one in found.splits}
    assert found.depth_share == min(sorted(divergences), key=lambda share: divergences[share])
    first = min(sorted(shares[:3]), key=lambda share: divergences[share])
    better_side = {0.0: 0.25, 1.0: 0.75, 0.5: 0.25 if divergences[0.0] <= divergences[1.0] else 0.75}
    assert shares[3] == better_side[first], "half way from the best to its better neighbour"
    assert set(shares[4:]) <= {0.125, 0.375, 0.625, 0.875}


def test_model_is_bit_identical_afterwards(planned: Planned) -> None:
    model, now = planned.model, dict(planned.model.named_parameters())
    assert [id(module) for module in model.modules()] == planned.modules
    assert {name: id(value) for name, value in now.items()} == {n: i for n, (i, _) in planned.before.items()}
    assert all(torch.equal(value, planned.before[name][1]) for name, value in now.items())
    assert model.training


@pytest.mark.filterwarnings("ignore:The plan removes")  # units are large
def test_width_alone_where_no_depth_can_go() -> None:
    plan, width = (make(cnn(), Budget(macs=0.3), batches=images()) for make in (plan_pruning, plan_width))
    assert plan.edits == width.edits
    assert all(torch.equal(plan.tensors[key], width.tensors[key]) for key in width.tensors)
    assert plan.result == width.result
    assert SplitEvidence.of(plan.evidence).depth_share == 0


@pytest.mark.slow
def test_depth_alone_where_no_width_may_go() -> None:
    plan = plan_pruning(vit(), Budget(macs=0.3), batches=images(), kinds=("attention", "activation"))
    depth = plan_depth(vit(), Budget(macs=0.3), batches=images(), kinds=("attention", "activation"))
    assert plan.edits == depth.edits
    assert SplitEvidence.of(plan.evidence).depth_share == 1


def test_ends_are_the_plans_of_width_and_of_depth() -> None:
    kinds: Any = (plan_depth, {"kinds": ("attention", "activation")}), (plan_width, {"kinds": ("neuron",)})
    config = SharedBudgetConfig(kinds=("attention", "activation", "neuron"))
    planner = SharedBudgetPlanner(Session(vit(depth=2), images()), "macs", config)
    depth, width = (make(vit(depth=2), Budget(macs=0.3), batches=images(), **how) for make, how in kinds)
    assert planner.alone(True, 0.3).edits == depth.edits
    assert planner.alone(False, 0.3).edits == width.edits


@pytest.mark.slow
def test_half_by_depth_and_half_by_width_is_one_plan(both: Plan) -> None:
    assert {"head", "neuron"} & set(both.removed)
    assert {"block", "attention", "mlp", "activation"} & set(both.removed)
    assert both.kept_groups
    model = vit()
    apply_plan(model, both)
    assert sum(p.numel() for p in model.parameters()) == both.result.params
    assert 0.4 < left(vit(), model) < 0.52


def test_plan_of_both_is_drawn(both: Plan) -> None:
    assert len(both.plot().axes) >= 2


def test_plan_of_both_is_saved_and_read(both: Plan, tmp_path: Path) -> None:
    assert Plan.load(both.save(tmp_path / "plan.json")) == both


def test_pruned_by_both_opens_again(both: Plan, tmp_path: Path) -> None:
    model = vit()
    apply_plan(model, both)
    save_pruned(model, both, tmp_path / "pruned")
    opened = load_pruned(tmp_path / "pruned", model=vit())
    batch = images(1)[0][0]
    assert torch.equal(opened.eval()(batch), model(batch))


def test_plan_of_both_is_fitted_to_other_weights(both: Plan) -> None:
    other = vit()
    with torch.no_grad():
        other.head.weight.mul_(1.5)
    apply_plan(other, refit_plan(other, both, images()))
    assert other(IMAGE).isfinite().all()


@pytest.mark.slow
def test_refitted_on_the_same_weights_a_plan_of_both_is_the_same(both: Plan) -> None:
    """Width is tuned towards the dense network here as well, and not towards the one without what goes in depth."""
    again = refit_plan(vit(), both, MANY)
    assert any(isinstance(edit, Narrow) and edit.tensors for edit in both.edits)
    assert any(not isinstance(edit, Narrow) and getattr(edit, "tensors", ()) for edit in both.edits)
    for key, value in both.tensors.items():
        torch.testing.assert_close(again.tensors[key], value, rtol=2e-3, atol=2e-4)


@pytest.mark.slow
def test_splits_are_compared_on_samples_that_nothing_was_fitted_to(both: Plan) -> None:
    """Weights that read removed units must not have learnt the held-out samples, or width would look too good."""
    model, batches = vit(), [batch for batch, _ in MANY]
    samples = split_batches(batches, torch.device("cpu"))
    inputs = torch.cat([batch.args[0] for batch in samples.held_out])

    def divergence(tensors: Mapping[str, torch.Tensor]) -> float:
        pruned = copy.deepcopy(model)
        apply_edits(pruned, both.edits, tensors)
        with torch.inference_mode():
            dense, output = model(inputs).log_softmax(-1), pruned(inputs).log_softmax(-1)
        return nn.functional.kl_div(output, dense, log_target=True, reduction="batchmean").item()

    planner = SharedBudgetPlanner(Session(model, MANY), "macs", SharedBudgetConfig())
    first = next(i for i, edit in enumerate(both.edits) if isinstance(edit, Narrow))
    without_depth = copy.deepcopy(model)
    apply_edits(without_depth, both.edits[:first], both.tensors)
    narrowing = [edit for edit in both.edits[first:] if isinstance(edit, Narrow)]

    def learnt(inputs: Sequence[ModelInputs]) -> Mapping[str, torch.Tensor]:
        fitted = {**both.tensors, **fitted_tensors(without_depth, narrowing, inputs)}
        found = tuned_tensors(both.edits, fitted, inputs, judge_of(model, samples), first)
        assert divergence(found) <= divergence(fitted)
        return found

    assert planner.divergence(both) == pytest.approx(divergence(learnt(samples.fit)), rel=1e-4)
    for key, value in learnt(samples.whole).items():  # once all is decided
        torch.testing.assert_close(both.tensors[key], value, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_splits_of_networks_with_batchnorm_are_compared_once_they_are_nearest() -> None:
    """As `Prune` does it after the surgery, BatchNorm alone is estimated anew, or all is reconstructed."""
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 16, 3), nn.ReLU(), *(Residual(16) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*body, nn.Linear(16, 4)).eval()
    recalibrate_batchnorm(model, MANY)
    before = copy.deepcopy(model.state_dict())
    planner = SharedBudgetPlanner(Session(model, MANY), "macs", SharedBudgetConfig())
    plan = planner.together(0.2, 0.5)
    assert {"channel"} < plan.removed.keys()
    found = planner.divergence(plan)
    samples = split_batches([batch for batch, _ in MANY], torch.device("cpu"))
    inputs = torch.cat([batch.args[0] for batch in samples.held_out])
    network = copy.deepcopy(model)
    apply_plan(network, plan)

    @torch.inference_mode()
    def divergence() -> float:
        dense, output = model(inputs).log_softmax(-1), network.eval()(inputs).log_softmax(-1)
        return nn.functional.kl_div(output, dense, log_target=True, reduction="batchmean").item()

    recalibrate_batchnorm(network, samples.fit)
    recalibrated = divergence()
    fit_layers(network, model, plan, samples.fit)
    nearest = min(recalibrated, divergence())
    assert found == pytest.approx(nearest, rel=0.05)  # but for the tuning of what weights take over
    for name, value in before.items():
        assert torch.equal(model.state_dict()[name], value), name


@pytest.mark.slow
def test_neurons_of_linears_that_become_one_stay(both: Plan) -> None:
    planner = SharedBudgetPlanner(Session(vit(), images()), "macs", SharedBudgetConfig(kinds=("activation", "neuron")))
    plan = planner.together(0.15, 0.3)
    gone = {name.removesuffix(".act") for name in plan.removed["activation"]}
    assert gone
    assert not [name for name in plan.removed["neuron"] if name.partition(".fc1")[0] in gone]


def test_experts_go_for_a_share_of_the_parameters() -> None:
    model = tiny_mixture("mixtral")
    assert "expert" in SharedBudgetConfig().width_kinds(model, "params")
    assert "expert" not in SharedBudgetConfig().width_kinds(model, "macs")
    config = SharedBudgetConfig(kinds=("attention", "expert"))
    plan = SharedBudgetPlanner(Session(model, text(2)), "params", config).together(0.05, 0.2)
    assert plan.removed["attention"]
    assert plan.removed["expert"]
    dense = sum(p.numel() for p in model.parameters())
    apply_plan(model, plan)
    assert 0.7 < plan.result.params / dense < 0.81


@pytest.mark.slow
@pytest.mark.parametrize("network", ["layers", "blocks"])
def test_depth_that_leaves_settings_shares_a_budget(network: str) -> None:
    """Bypassed layers and configs that follow blocks are edits with dictionaries, which have no hash."""
    if network == "layers":
        torch.manual_seed(0)
        body = [nn.Conv2d(3, 8, 3), *(Residual(8) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        plan = plan_pruning(nn.Sequential(*body, nn.Linear(8, 4)).eval(), Budget(macs=0.4), batches=images())
    else:
        plan = plan_pruning(tiny_llama(), Budget(params=0.4), batches=text(2), kinds=("block", "neuron"))
    assert all(one.saved is not None for one in SplitEvidence.of(plan.evidence).splits if not one.refused)
    saved = SplitEvidence.of(plan.evidence).saved
    assert saved is not None
    assert saved >= 0.39


@pytest.mark.slow
def test_blocks_and_equal_widths_leave_a_standard_llama(tmp_path: Path) -> None:
    import transformers

    model = tiny_llama()
    config = SharedBudgetConfig(kinds=("block", "neuron"), equal_layers=True)
    plan = SharedBudgetPlanner(Session(model, text(2)), "params", config).together(0.2, 0.4)
    assert plan.removed["block"]
    apply_plan(model, plan)
    save_pruned(model, plan, tmp_path)
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert len(opened.model.layers) == len(model.model.layers)
    assert opened.config.intermediate_size == model.config.intermediate_size < 48
