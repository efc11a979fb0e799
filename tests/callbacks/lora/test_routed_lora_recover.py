"""RoutedLoRARecover inside a Trainer: each step's set and loss, the files, and refusals."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.fits.routed_lora import BLOCKS, Language, ManualLanguage, fit, shared, tokens
from cases.models.routed_language import SETS, removing, sets_of
from cases.trainers import sharded
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
from transformers import AutoModelForCausalLM

from prunerecover import load_routed
from prunerecover.callbacks import RoutedLoRARecover
from prunerecover.model.batches import ModelInputs
from prunerecover.recovery.distillation import distillation_loss
from prunerecover.recovery.lora import has_adapters
from prunerecover.recovery.shared_lora import WithoutUnits, set_of_step, teacher_logits
from prunerecover.routing.plan_set import PlanSet

IDS = tokens(4)


def logits(network: Any) -> torch.Tensor:
    with torch.no_grad():
        return network.eval()(input_ids=IDS).logits  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Return the folder and the module of a fit of two epochs, both read-only."""
    folder = tmp_path_factory.mktemp("fitted")
    return folder, fit(folder)[0]


class Calls(pl.Callback):
    """Notes how many blocks each call of the network runs, and with gradients or not."""

    def __init__(self) -> None:
        self.depths: list[tuple[int, bool]] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        def note(network: Any, args: Any) -> None:
            self.depths.append((len(network.model.layers), torch.is_grad_enabled()))

        pl_module.net.register_forward_pre_hook(note)


def calls_of(folder: Path, module: Any, settings: Any = None, **arguments: Any) -> list[tuple[int, bool]]:
    """Return the calls of the network in a fit of an epoch, four batches, unless the settings say otherwise."""
    calls = Calls()
    fit(folder, shared(module.net, **arguments), calls, module=module, **{"epochs": 1, **(settings or {})})
    return calls.depths


def depths(*steps: int) -> list[int]:
    return [BLOCKS - len(SETS[set_of_step(step, len(SETS))]) for step in steps]


@pytest.mark.parametrize("make", [Language, ManualLanguage])
def test_each_step_leaves_out_a_set_and_the_teacher_has_all_blocks(tmp_path: Path, make: Any) -> None:
    expected = [call for depth in depths(0, 1, 2, 3) for call in ((depth, True), (BLOCKS, False))]
    assert calls_of(tmp_path, make()) == expected


def test_without_distillation_accumulated_batches_are_of_one_set_and_called_once(tmp_path: Path) -> None:
    found = calls_of(tmp_path, Language(), {"accumulate_grad_batches": 2}, teacher_weight=0)
    assert found == [(depth, True) for depth in depths(0, 0, 1, 1)]


def test_epochs_before_the_start_train_the_whole_model(tmp_path: Path) -> None:
    found = calls_of(tmp_path, Language(), {"epochs": 2}, start=1)
    assert found[:4] == [(BLOCKS, True)] * 4
    assert (BLOCKS, False) in found[4:]


def test_the_loss_is_of_the_sets_model_and_of_the_teacher(tmp_path: Path) -> None:
    module, network = Language(), Language().net
    callback = shared(module.net, teacher_weight=0.25, temperature=2.0)
    seen: list[Any] = []

    class Look(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append((outputs["loss"], batch))

    fit(tmp_path, callback, Look(), module=module, epochs=1, limit_train_batches=1)
    (loss, batch) = seen[0]  # the first step: adapters still change nothing
    with WithoutUnits(network, sets_of(network).plans[set_of_step(0, 4)].edits):
        output = network(**batch)
    teacher = teacher_logits(network, ModelInputs(kwargs=dict(batch)))
    expected = 0.75 * output.loss + 0.25 * distillation_loss(output.logits, teacher, 2.0)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-5)


def test_adapters_alone_train(fitted: tuple[Path, Any]) -> None:
    module = fitted[1]
    before = Language().net.state_dict()
    after = {name.replace("base_layer.", ""): value for name, value in module.net.state_dict().items()}
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(("lora_" in name) is p.requires_grad for name, p in module.net.named_parameters())
    moved = [p for name, p in module.net.named_parameters() if "lora_B" in name]
    assert all(p.abs().sum() for p in moved)


def test_the_module_is_as_its_user_wrote_it_afterwards(fitted: tuple[Path, Any]) -> None:
    module = fitted[1]
    assert "training_step" not in vars(module)
    assert len(module.net.model.layers) == BLOCKS
    assert not module.net._forward_hooks


@pytest.mark.slow
def test_compiled_network_learns_the_same(tmp_path: Path) -> None:
    compiled = Language()
    compiled.net.compile(backend="eager")
    plain, _ = fit(tmp_path / "plain", epochs=1, limit_train_batches=2)
    found, _ = fit(tmp_path / "compiled", module=compiled, epochs=1, limit_train_batches=2)
    for left, right in zip(plain.parameters(), found.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def test_routed_folder_is_the_live_model(fitted: tuple[Path, Any]) -> None:
    """Every set routes over the recovered weights, with the outputs of the module with adapters."""
    folder, module = fitted
    routed = load_routed(folder / "routed")
    assert not has_adapters(routed)
    for number, plan in enumerate(sets_of(Language().net).plans):
        with WithoutUnits(module.net, plan.edits):
            expected = logits(module.net)
        torch.testing.assert_close(logits(routed.network(number)), expected, rtol=1e-4, atol=1e-4)


def test_base_in_the_folder_is_a_standard_model(fitted: tuple[Path, Any]) -> None:
    folder, module = fitted
    opened = AutoModelForCausalLM.from_pretrained(folder / "routed" / "model")
    assert opened.config.num_hidden_layers == BLOCKS
    torch.testing.assert_close(logits(opened), logits(module.net), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_resumed_run_writes_its_folder_again(fitted: tuple[Path, Any], tmp_path: Path) -> None:
    shutil.copytree(fitted[0], tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "routed" / "model")
    fit(tmp_path, resume=tmp_path / "epoch=0.ckpt")
    assert load_routed(tmp_path / "routed").sets.names == sets_of(Language().net).names
    assert [path.name for path in sorted(tmp_path.glob("routed*"))] == ["routed"]


def test_finished_run_begun_again_leaves_its_folder_alone(fitted: tuple[Path, Any], tmp_path: Path) -> None:
    shutil.copytree(fitted[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "routed" / "model" / "note.txt").touch()  # what is written again is written anew
    fit(tmp_path, resume=tmp_path / "epoch=1.ckpt")
    assert (tmp_path / "routed" / "model" / "note.txt").exists()


def test_sets_are_read_from_their_file(tmp_path: Path) -> None:
    callback = shared(Language().net)
    callback.sets.save(tmp_path / "sets.json")
    assert RoutedLoRARecover(str(tmp_path / "sets.json")).sets == callback.sets


def test_a_file_that_is_not_there_is_missed_when_a_fit_starts(tmp_path: Path) -> None:
    callback = RoutedLoRARecover(str(tmp_path / "none.json"))
    with pytest.raises(FileNotFoundError, match="Expected a file with a set of plans at .*none.json"):
        fit(tmp_path, callback, module=Language())


def test_resuming_with_other_sets(fitted: tuple[Path, Any], tmp_path: Path) -> None:
    network = Language().net
    other = PlanSet(names=("one",), plans=(removing(network, 1),))
    with pytest.raises(ValueError, match="Expected RoutedLoRARecover with the sets and arguments of the run that is"):
        fit(tmp_path, shared(network, sets=other), resume=fitted[0] / "epoch=0.ckpt")


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (DDPStrategy(static_graph=True), "Expected DDP without static_graph=True, as each step leaves out other"),
        (FSDPStrategy.__new__(FSDPStrategy), "Expected a strategy that keeps the model whole, but got FSDPStrategy"),
    ],
)
def test_strategies(strategy: Any, message: str) -> None:
    module = Language()
    callback = shared(module.net)
    with pytest.raises(ValueError, match=message):
        callback.setup(sharded(strategy, callback), module, "fit")
