"""Every method plans for the given weights, warns if they are untrained, and makes a plan that applies."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from cases.models.tiny import stir
from torch import nn

from prunerecover import Plan
from prunerecover.model.paths import get_module
from prunerecover.recipes.plan_methods.base import AnyNetworkMethod, PlanTask
from prunerecover.recipes.plan_methods.run import plan_with
from prunerecover.recipes.tasks.digits_classifier import DigitsClassifier


class Looks(AnyNetworkMethod):
    """Notes the network, without a decision."""

    def make(self, task: PlanTask) -> Plan:
        self.seen = get_module(task.module, task.target)
        return Plan()


def seen(module: nn.Module, folder: Path, checkpoint: Path | None = None) -> tuple[nn.Module, list[str]]:
    """Return the method's network, and the warnings."""
    method = Looks()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = None if checkpoint is None else str(checkpoint)
        plan_with(method, module, None, 8, None, path, torch.device("cpu"), folder / "plan.json")
    return method.seen, [str(warning.message) for warning in caught if "initialised" in str(warning.message)]


def test_untrained_weights_are_warned_of(tmp_path: Path) -> None:
    module = DigitsClassifier(depth=1, embed_dim=16, num_heads=2)
    network, (warning,) = seen(module, tmp_path)
    assert network is module.model
    assert warning.startswith("The plan is for VisionTransformer as it was initialised: no weights were loaded")
    assert warning.endswith("or plan with the weights of a fit: --ckpt_path dense.ckpt.")


def test_trained_weights_are_planned_for_without_a_word(tmp_path: Path) -> None:
    module, trained = (DigitsClassifier(depth=1, embed_dim=16, num_heads=2) for _ in range(2))
    stir(trained)
    torch.save({"state_dict": trained.state_dict()}, tmp_path / "dense.ckpt")
    assert seen(trained, tmp_path)[1] == []
    network, warned = seen(module, tmp_path, tmp_path / "dense.ckpt")
    assert not warned
    assert all(torch.equal(p, q) for p, q in zip(network.parameters(), trained.model.parameters(), strict=True))
