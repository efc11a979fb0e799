"""Networks with more state than parameters, and weights with infinite values or of several dtypes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.files.lightning_files import rewrite, save
from cases.models.routed_language import sets_of
from cases.models.tiny import tiny_images, tiny_llama, tiny_timm
from cases.tiny_plans import pruned
from cases.trainers import Around, fit
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

from prunerecover import (
    Budget,
    LoRARecover,
    Plan,
    RoutedCausalLM,
    export,
    load_pruned,
    plan_width,
    save_pruned,
    save_routed,
)
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.checkpoint.ledger_record import KEY, LedgerRecord
from prunerecover.model.checks import is_finite

QUICK: dict[str, Any] = {"importance": "magnitude", "replace": "zero"}


class Divided(nn.Module):
    """Halves the weights before the first evaluation, and notes the halving and the input, like RWKV and Swin."""

    def __init__(self, memory: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 4)
        self.is_divided, self.size = False, (0, 0)
        if memory:
            self.size = self.seen = None

    def forward(self, x: Tensor) -> Tensor:
        if not (self.is_divided or self.training):
            self._divide()
        self.size = tuple(x.shape)
        return self.last(self.first(x).relu()) * (2 if self.is_divided else 1)

    def _divide(self) -> None:
        self.last.weight.data /= 2
        self.is_divided = True


class Remembering(Divided):
    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        return super().forward(x)


def saved_after_use(model: nn.Module, folder: Path) -> tuple[Path, Tensor]:
    x = torch.ones(2, 4)
    model.eval()(x)
    return save_pruned(model, Plan(), folder / "pruned"), model(x)


def test_what_forward_wrote_is_restored_with_the_weights(tmp_path: Path) -> None:
    path, expected = saved_after_use(Divided(), tmp_path)
    again: Any = load_pruned(path, Divided())
    assert (again.is_divided, again.size) == (True, (2, 4))
    assert torch.equal(again(torch.ones(2, 4)), expected)


def test_what_stands_beside_tensors_is_not_restored_without_them(tmp_path: Path) -> None:
    path, _ = saved_after_use(Remembering(memory=True), tmp_path)
    assert load_pruned(path, Remembering(memory=True)).size is None


def test_file_cannot_write_anything_else(tmp_path: Path) -> None:
    path, _ = saved_after_use(Divided(), tmp_path)
    weights = path / "model.safetensors"
    use = {"": {"size": {"a": 1}, "forward": "x", "is_divided": True}, "first": {"bias": None}, "no.such": {"size": 1}}
    save_file(load_file(weights), weights, {"prunerecover.use": json.dumps(use)})
    plan = json.loads((path / "plan.json").read_text())
    plan.pop("saved")  # the hash
    (path / "plan.json").write_text(json.dumps(plan))
    again: Any = load_pruned(path, Divided())
    assert (again.is_divided, again.size) == (True, (0, 0))
    assert callable(again.forward)
    assert isinstance(again.first.bias, nn.Parameter)


class Module(Around):
    def __init__(self) -> None:
        super().__init__(Divided())


def test_what_forward_wrote_is_in_checkpoints(tmp_path: Path) -> None:
    module, x = Module(), torch.ones(8, 4)
    plan = plan_width(Divided(), Budget(remove={"neuron": 2}), batches=[x], kinds=("neuron",), **QUICK)
    Ledger.of(module).apply(module, "net", plan)
    expected = module.net.eval()(x)
    path = save(module, tmp_path / "last.ckpt")
    assert torch.equal(load_pruned(path, Divided())(x), expected)
    assert torch.equal(load_pruned(path, Module).net.eval()(x), expected)
    resumed = Module()
    Ledger.of(resumed).restore(resumed, LedgerRecord.from_dict(torch.load(path)[KEY]))
    resumed.load_state_dict(torch.load(path)["state_dict"])
    assert torch.equal(resumed.net.eval()(x), expected)


NAN = r"Expected finite weights in .*{name}\S*, but .* holds? NaN or infinite values, and so .* or bfloat16"


def spoil(model: nn.Module, value: float = float("nan")) -> nn.Module:
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] = value
    return model


def save_plan(folder: Path) -> None:
    _, plan = pruned("attention affine")
    plan.with_tensors({key: value / 0 for key, value in plan.tensors.items()}).save(folder / "file")


def save_standard(folder: Path) -> None:
    model = spoil(pruned("llama blocks")[0])
    model.save_pretrained(folder / "file")  # type: ignore[operator]


def save_routes(folder: Path) -> None:
    model = tiny_llama(num_hidden_layers=6)
    save_routed(RoutedCausalLM(spoil(model), sets_of(model)), folder / "file", weights=True)


def save_network(folder: Path) -> None:
    model, plan = pruned("attention zero")
    save_pruned(spoil(model, torch.inf), plan, folder / "file")


def export_network(folder: Path) -> None:
    export(spoil(nn.Sequential(nn.Linear(4, 4))), folder / "file.pt2", torch.randn(2, 4))


@pytest.mark.parametrize(
    "saved", [save_plan, save_standard, save_routes, save_network, pytest.param(export_network, marks=pytest.mark.slow)]
)
def test_what_is_not_finite_is_not_saved_in_silence(saved: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=NAN.format(name="file")):
        saved(tmp_path)


class Diverging(Around):
    def __init__(self) -> None:
        super().__init__(tiny_timm())

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.net(batch).square().mean() * torch.inf


def test_a_fit_that_diverges_does_not_write_pruned_in_silence(tmp_path: Path) -> None:
    adapters = LoRARecover(rank=2, target_modules=["fc1"])
    with pytest.warns(UserWarning, match=NAN.format(name="pruned")):
        fit(tmp_path, Diverging(), adapters, ModelCheckpoint(tmp_path), data=DataLoader(tiny_images(4), 2), epochs=1)
    assert (tmp_path / "pruned" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("tensor", "finite"),
    [
        (torch.tensor([0.0, -torch.inf]), True),  # a mask
        (nn.Parameter(torch.tensor([0.0, -torch.inf])), False),
        (torch.tensor([0.0, torch.inf]), False),
        (torch.tensor([1, 2]), True),
        (torch.empty(0), True),
        (torch.tensor([0.0, torch.nan]).to_sparse(), False),
        (torch.tensor([complex(0, torch.nan)]), False),
        (torch.tensor([torch.nan]).to(torch.float8_e4m3fn), False),
        (torch.empty(2, device="meta"), True),
    ],
)
def test_what_is_finite(tensor: Tensor, finite: bool) -> None:
    assert is_finite(tensor) is finite


@pytest.mark.filterwarnings("ignore:load_pruned:UserWarning")
def test_odd_values_in_files_are_told(file: Path) -> None:
    mixed = r"Expected weights of one dtype in .*, but got float32 and, for head.weight, float16. .*model.to\(torch.flo"
    rewrite(file, lambda c: c["state_dict"].update({"net.head.weight": torch.ones(5, 32).half()}))
    with pytest.warns(UserWarning, match=mixed):
        load_pruned(file)
    rewrite(file, lambda c: c["state_dict"]["net.head.bias"].fill_(torch.nan))
    with pytest.warns(UserWarning, match=NAN.format(name="last.ckpt")):
        load_pruned(file)


def test_weights_of_two_dtypes_that_were_saved_so_are_loaded_in_silence(tmp_path: Path) -> None:
    model, plan = pruned("attention zero")
    model.get_submodule("head").half()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = load_pruned(save_pruned(model, plan, tmp_path / "pruned"))
        assert again.get_submodule("head").get_parameter("weight").dtype == torch.float16
