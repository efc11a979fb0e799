"""A budget over depth and width: it is met, and the plan is an ordinary plan."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_llama, tiny_mixture
from cases.planning.networks import IMAGE, Residual, cnn, images, left, vit
from cases.planning.plans import chosen, plan_with, together
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
from prunerecover.calibration.samples import split_batches
from prunerecover.plan.evidence import SplitEvidence
from prunerecover.plan.summary import saved_shares
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.planner import Planner
from prunerecover.recovery.judged import recalibration
from prunerecover.recovery.reconstruction import fit_layers
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits

HALF = Budget(macs=0.5)
MANY = images(6)  # enough samples to tune refitted weights


VARIANTS = {
    "blocks.0.mlp": "32 of 64 neurons",
    "blocks.1.attn": "affine",
    "blocks.2.attn": "1 of 2 heads",
    "blocks.2.mlp": "16 of 64 neurons",
}


@pytest.fixture(scope="module")
def both() -> Plan:
    """Return a plan without an attention, and without heads and neurons of other blocks."""
    return plan_with(Planner(Session(vit(), MANY), "macs", PruningConfig()), VARIANTS)


@dataclass(frozen=True)
class Planned:
    """Model, its state before planning, and its plan."""

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
    assert 0.47 < left(planned.model, pruned) < 0.502
    assert planned.plan.made_by.method == "joint"
    assert planned.plan.made_by.arguments["budget"] == {"macs": 0.5}


def test_what_depth_takes_and_what_is_saved_are_told(planned: Planned) -> None:
    (found,) = SplitEvidence.of(planned.plan.evidence).splits
    evidence = SplitEvidence.of(planned.plan.evidence)
    assert evidence.depth_share == found.depth
    assert (found.depth > 0) == any(kind in planned.plan.removed for kind in ("block", "attention", "mlp"))
    assert found.divergence is not None
    pruned = copy.deepcopy(planned.model)
    apply_plan(pruned, planned.plan)
    assert saved_shares(planned.plan) == {"macs": pytest.approx(1 - left(planned.model, pruned), abs=1e-6)}


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
    kinds: Any = (
        (plan_depth, {"kinds": ("attention", "activation")}),
        (plan_width, {"kinds": ("neuron",), "allocation": "per_cost"}),
    )
    config = PruningConfig(kinds=("attention", "activation", "neuron"))
    planner = Planner(Session(vit(depth=2), images()), "macs", config)
    depth, width = (make(vit(depth=2), Budget(macs=0.3), batches=images(), **how) for make, how in kinds)
    assert planner.alone(True, "macs", 0.3).edits == depth.edits
    assert planner.alone(False, "macs", 0.3).edits == width.edits


def test_depth_and_width_are_one_plan(both: Plan) -> None:
    assert set(both.removed) == {"attention", "head", "neuron"}
    assert both.kept_groups
    model = vit()
    apply_plan(model, both)
    assert sum(p.numel() for p in model.parameters()) == both.result.params
    assert 0.6 < left(vit(), model) < 0.7


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
def test_refitted_on_the_same_weights_a_plan_of_both_is_as_near_the_dense_output(both: Plan) -> None:
    inputs = torch.cat([batch for batch, _ in MANY])
    dense, far = vit()(inputs).detach(), list[float]()
    for plan in (both, refit_plan(vit(), both, MANY)):
        model = vit()
        apply_plan(model, plan)
        far.append(float((model(inputs) - dense).norm()))
    assert far[1] < 1.5 * far[0]


@pytest.mark.slow
def test_nothing_is_fitted_to_samples_that_choices_are_compared_on() -> None:
    """Other held-out samples change the divergence, and no fitted value."""
    states = []
    for noise in (0.0, 1.0):
        session = Session(vit(), MANY)
        held_out = tuple(replace(batch, args=(batch.args[0] + noise,)) for batch in session.samples.held_out)
        session.samples = replace(session.samples, held_out=held_out)
        planner = Planner(session, "macs", PruningConfig())
        states.append(chosen(planner, VARIANTS))
    values = [planner.library.maker.edits(state.chosen)[1] for state in states]
    assert values[0].keys() == values[1].keys()
    assert all(torch.equal(value, values[1][key]) for key, value in values[0].items())
    assert states[0].divergence != states[1].divergence


@pytest.mark.slow
def test_divergence_is_that_of_the_planned_network_on_held_out_samples() -> None:
    planner = Planner(Session(vit(), MANY), "macs", PruningConfig())
    state = chosen(planner, VARIANTS)
    pruned, dense = vit(), vit()
    apply_edits(pruned, *planner.library.maker.edits(state.chosen, in_place=False))
    inputs = torch.cat([batch.args[0] for batch in planner.session.samples.held_out])
    with torch.inference_mode():
        outputs = [model(inputs).log_softmax(-1) for model in (pruned, dense)]
    wanted = nn.functional.kl_div(*outputs, log_target=True, reduction="batchmean").item()
    assert state.divergence == pytest.approx(wanted, rel=1e-3)


@pytest.mark.slow
def test_splits_of_networks_with_batchnorm_are_compared_once_they_are_nearest() -> None:
    """As in `Prune` after the surgery, BatchNorm alone is recalibrated, or everything is reconstructed."""
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 16, 3), nn.ReLU(), *(Residual(16) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*body, nn.Linear(16, 4)).eval()
    recalibrate_batchnorm(model, MANY)
    before = copy.deepcopy(model.state_dict())
    planner = Planner(Session(model, MANY), "macs", PruningConfig())
    block, group = (name for name in planner.library.sites if name in ("2", "3.first"))
    gone = planner.library.sites[block].variants[-1].name
    plan = plan_with(planner, {block: gone, group: "8 of 16 channels"})
    assert {"channel"} < plan.removed.keys()
    found = planner.judge.divergence(plan)
    samples = split_batches([batch for batch, _ in MANY], torch.device("cpu"))
    inputs = torch.cat([batch.args[0] for batch in samples.held_out])
    network = copy.deepcopy(model)
    apply_plan(network, plan)

    @torch.inference_mode()
    def divergence() -> float:
        dense, output = model(inputs).log_softmax(-1), network.eval()(inputs).log_softmax(-1)
        return nn.functional.kl_div(output, dense, log_target=True, reduction="batchmean").item()

    recalibration(network, model, plan)(samples.fit)
    recalibrated = divergence()
    fit_layers(network, model, plan, samples.fit)
    nearest = min(recalibrated, divergence())
    assert found == pytest.approx(nearest, rel=0.05)  # except for the tuning of refitted weights
    for name, value in before.items():
        assert torch.equal(model.state_dict()[name], value), name


@pytest.mark.slow
def test_neurons_of_linears_that_become_one_stay() -> None:
    planner = Planner(Session(vit(), images()), "macs", PruningConfig(kinds=("activation", "neuron")))
    pairs = planner.program(("macs",)).holds
    assert set(pairs) == {(f"blocks.{block}.mlp.act", f"blocks.{block}.mlp.fc1") for block in range(3)}


@pytest.mark.slow
def test_experts_go_for_a_share_of_the_parameters() -> None:
    model = tiny_mixture("mixtral")
    assert "expert" in PruningConfig().width_kinds(model, ("params",))
    assert "expert" not in PruningConfig().width_kinds(model, ("macs",))
    config = PruningConfig(kinds=("attention", "expert"))
    plan = together(Planner(Session(model, text(2)), "params", config), 0.2)
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
        body = [nn.Conv2d(3, 8, 3), *(Residual(8) for _ in range(2)), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        plan = plan_pruning(nn.Sequential(*body, nn.Linear(8, 4)).eval(), Budget(macs=0.4), batches=images())
    else:
        plan = plan_pruning(tiny_llama(), Budget(params=0.4), batches=text(2), kinds=("block", "neuron"))
    assert all(one.saved for one in SplitEvidence.of(plan.evidence).splits if not one.refused)
    (saved,) = saved_shares(plan).values()
    assert saved >= 0.39


@pytest.mark.slow
def test_blocks_and_equal_widths_leave_a_standard_llama(tmp_path: Path) -> None:
    import transformers

    model = tiny_llama()
    config = PruningConfig(kinds=("block", "neuron"), equal_layers=True)
    planner = Planner(Session(model, text(2)), "params", config)
    neurons = {f"model.layers.{layer}.mlp.gate_proj": "24 of 48 neurons" for layer in (0, 1, 3)}
    plan = plan_with(planner, {"model.layers.2": "zero", **neurons})
    assert plan.removed["block"] == ("model.layers.2",)
    apply_plan(model, plan)
    save_pruned(model, plan, tmp_path)
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert len(opened.model.layers) == len(model.model.layers)
    assert opened.config.intermediate_size == model.config.intermediate_size < 48
