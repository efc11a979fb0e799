"""Prune inside a Trainer: depth and width share a budget, training continues, and files resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases.planning.networks import cnn
from cases.planning.plans import plan_with
from cases.width.width_prune import Classifier, fit, rows, trainer

from prunerecover import Budget, Plan, load_pruned
from prunerecover.callbacks import DistillRecover, Prune, WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.cost.macs import count_macs
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.planner import Planner
from prunerecover.recipes.networks.cifar_resnet import CifarResNet
from prunerecover.session.session import Session

THIRD = Budget(macs=0.3)
KINDS = ("attention", "neuron")
IMAGE = torch.zeros(1, 3, 16, 16)


def prune(**arguments: Any) -> Prune:
    return Prune(**{"budget": THIRD, "calibration": 24, "schedule": {"start": 1}, "kinds": KINDS, **arguments})


@pytest.fixture(scope="module")
def both() -> Plan:
    """A plan of both for the module's network, made beforehand."""
    network, batches = Classifier("vit").net.eval(), list(rows(False))
    planner = Planner(Session(network, batches), "macs", PruningConfig(kinds=KINDS))
    neurons = next(site for site in planner.library.sites.values() if site.kind == "neuron")
    return plan_with(planner, {"blocks.1.attn": "affine", neurons.name: neurons.variants[-1].name})


@pytest.mark.slow
def test_budget_goes_and_training_goes_on(tmp_path: Path) -> None:
    module = fit(tmp_path, prune(), network="vit", epochs=3)
    (event,) = Ledger.of(module).events
    assert (event.by, event.epoch) == ("Prune.0", 1)
    assert Ledger.of(module).plans["net"].made_by.method == "joint"
    assert all(p.requires_grad for p in module.net.parameters())
    opened = load_pruned(tmp_path / "files" / "pruned", model=Classifier("vit").net)
    assert 0.6 < count_macs(opened, IMAGE) / count_macs(Classifier("vit").net, IMAGE) < 0.72
    assert Plan.load(tmp_path / "files" / "plan.json").removed == Ledger.of(module).plans["net"].removed


def test_given_plan_is_fitted_to_what_was_trained_since(both: Plan, tmp_path: Path) -> None:
    module = fit(tmp_path, Prune(plan=both, calibration=24, schedule=1), DistillRecover(), network="vit")
    assert Ledger.of(module).plans["net"].removed == both.removed


def test_where_no_depth_can_go_it_is_width_prune(tmp_path: Path) -> None:
    found = []
    for callback in (Prune, WidthPrune):
        module = Classifier()
        module.net = cnn().train()
        surgeon = callback(THIRD, calibration=24, schedule=1, merge="never")
        with pytest.warns(UserWarning, match="The plan removes"):  # units are large
            trainer(tmp_path / callback.__name__, surgeon).fit(module, rows(False), rows(False))
        found.append(module.state_dict())
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def mixed(network: torch.nn.Module) -> Plan:
    config = PruningConfig(kinds=("block", "channel"))
    planner = Planner(Session(network, list(rows(False))), "macs", config)
    sites = planner.library.sites.values()
    block = next(site for site in sites if site.kind == "block")
    channels = next(site for site in sites if site.kind == "channel" and not site.name.startswith(block.name))
    half = len(channels.variants) // 2
    return plan_with(planner, {block.name: "zero", channels.name: channels.variants[half].name})


@pytest.mark.slow
def test_depth_and_width_of_a_network_with_batchnorm(tmp_path: Path) -> None:
    module = Classifier()
    module.net = CifarResNet(blocks=2, num_classes=4)
    plan = mixed(module.net)
    trainer(tmp_path, Prune(plan=plan, calibration=24), epochs=2).fit(module, rows(), rows(False))
    assert {"block", "channel"} <= set(Ledger.of(module).plans["net"].removed)
    opened = load_pruned(tmp_path / "files" / "pruned", model=CifarResNet(blocks=2, num_classes=4))
    images = next(iter(rows(False)))[0]
    assert torch.equal(opened.eval()(images), module.net.eval()(images))
