"""What RoutedLoRARecover refuses, by its message; the network is what it was then."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.fits.routed_lora import Language, fit, shared
from cases.models.habits import Plain, loader
from cases.models.routed_language import removing
from cases.trainers import sharded
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy

from prunerecover.callbacks import DepthPrune, DistillRecover, LoRARecover, RoutedLoRARecover
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.routing.plan_set import PlanSet


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"rank": 0}, ValueError, "Expected argument rank of RoutedLoRARecover in its range, but got 0"),
        ({"distill": 1.5}, ValueError, "Expected argument distill to be between 0 and 1, but got 1.5"),
        ({"distill": True}, TypeError, "Expected argument distill to be a number, but got True"),
        ({"temperature": 0}, ValueError, "Expected argument temperature to be positive, but got 0"),
        ({"temperature": "2"}, TypeError, "Expected argument temperature to be a number, but got '2'"),
        ({"sets": [1]}, TypeError, r"Expected argument sets to be a PlanSet or the path of its file, but got \[1\]"),
    ],
)
def test_arguments(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        shared(Language().net, **arguments)


def test_sets_are_read_from_their_file(tmp_path: Path) -> None:
    callback = shared(Language().net)
    callback.sets.save(tmp_path / "sets.json")
    assert RoutedLoRARecover(str(tmp_path / "sets.json")).sets == callback.sets


def test_a_file_that_is_not_there_is_missed_when_a_fit_starts(tmp_path: Path) -> None:
    callback = RoutedLoRARecover(str(tmp_path / "none.json"))
    with pytest.raises(FileNotFoundError, match="Expected a file with a set of plans at .*none.json"):
        fit(tmp_path, callback, module=Language())


def refused(folder: Path, *callbacks: Any, match: str, module: Any = None, **settings: Any) -> None:
    module = Language() if module is None else module
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(ValueError, match=match):
        fit(folder, *callbacks, module=module, **settings)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert "training_step" not in vars(module)
    assert not Ledger.of(module).adapters


def test_sets_of_another_model(tmp_path: Path) -> None:
    other = shared(Language(vocab_size=60).net)
    refused(tmp_path, other, match="Expected the model that the plan was made for")


def test_a_callback_that_prunes_beside_it(tmp_path: Path) -> None:
    refused(tmp_path, shared(Language().net), DepthPrune(remove={"mlp": 1}), match="Expected no DepthPrune beside")


def test_another_distillation_beside_it(tmp_path: Path) -> None:
    refused(tmp_path, shared(Language().net), DistillRecover(), match="Expected no DistillRecover beside RoutedLoRA")


def test_other_adapters_beside_it(tmp_path: Path) -> None:
    refused(tmp_path, shared(Language().net), LoRARecover(), match="Expected one LoRARecover for the network at 'net'")


def test_networks_that_are_no_language_models(tmp_path: Path) -> None:
    match = "Expected a language model of transformers as it was loaded at 'net', but got a VisionTransformer"
    refused(tmp_path, shared(Language().net), module=Plain(), data=loader(), match=match)


def test_resuming_with_other_sets(tmp_path: Path) -> None:
    fit(tmp_path, max_epochs=1)
    network = Language().net
    other = PlanSet(names=("one",), plans=(removing(network, 1),))
    with pytest.raises(ValueError, match="Expected RoutedLoRARecover with the sets and arguments of the run that is"):
        fit(tmp_path, shared(network, sets=other), resume=tmp_path / "epoch=0.ckpt")


def test_steps_that_are_all_alike() -> None:
    module = Language()
    callback = shared(module.net)
    with pytest.raises(ValueError, match="Expected DDP without static_graph=True, as each step leaves out other"):
        callback.setup(sharded(DDPStrategy(static_graph=True), callback), module, "fit")


def test_sharding() -> None:
    module = Language()
    callback = shared(module.net)
    with pytest.raises(ValueError, match="Expected a strategy that keeps the model whole, but got FSDPStrategy"):
        callback.setup(sharded(FSDPStrategy.__new__(FSDPStrategy), callback), module, "fit")
