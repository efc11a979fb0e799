"""Networks whose state holds more than parameters: buffers, versions of modules, and what forward writes on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import timm
import torch
import torchvision
from cases.engine import unchanged
from cases.files.lightning_files import save
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from prunerecover import Budget, Plan, apply_plan, load_pruned, plan_width, save_pruned
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.checkpoint.ledger_record import KEY, LedgerRecord

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
QUICK: dict[str, Any] = {"importance": "magnitude", "replace": "zero"}


def pruned_folder(model: nn.Module, folder: Path) -> Path:
    plan = plan_width(model, Budget(macs=0.3), batches=[IMAGES], **QUICK)
    apply_plan(model, plan)
    return save_pruned(model, plan, folder)


def mnasnet() -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.mnasnet0_5(num_classes=3).eval()


def resnet() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model("resnet10t", num_classes=3)
    return model.eval()


@pytest.mark.slow
def test_module_that_asks_for_the_version_of_its_state_opens(tmp_path: Path) -> None:
    model = mnasnet()
    again = load_pruned(pruned_folder(model, tmp_path / "pruned"), mnasnet())
    assert torch.equal(again(IMAGES), model(IMAGES))


@pytest.mark.slow
@pytest.mark.parametrize("passed", [False, True])
def test_refusal_of_a_network_with_batchnorm_says_why(passed: bool, tmp_path: Path) -> None:
    folder = pruned_folder(resnet(), tmp_path / "pruned")
    tensors = load_file(folder / "model.safetensors")
    del tensors["fc.weight"]
    save_file(tensors, folder / "model.safetensors")
    plan = json.loads((folder / "plan.json").read_text())
    del plan["saved"]  # as in folders of before there was a hash, which would tell it first
    (folder / "plan.json").write_text(json.dumps(plan))
    dense = resnet()
    with unchanged(dense), pytest.raises(ValueError, match=r"lacks fc.weight\. Were plan and weights saved together"):
        load_pruned(folder, dense if passed else None)


class Divided(nn.Module):
    """Halves its weights before it is first evaluated, notes that it did and what came, as RWKV and Swin do."""

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


class Around(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Divided()


def test_what_forward_wrote_is_in_checkpoints(tmp_path: Path) -> None:
    module, x = Around(), torch.ones(8, 4)
    plan = plan_width(Divided(), Budget(remove={"neuron": 2}), batches=[x], kinds=("neuron",), **QUICK)
    Ledger.of(module).apply(module, "net", plan)
    expected = module.net.eval()(x)
    path = save(module, tmp_path / "last.ckpt")
    assert torch.equal(load_pruned(path, Divided())(x), expected)
    assert torch.equal(load_pruned(path, Around).net.eval()(x), expected)
    resumed = Around()
    Ledger.of(resumed).restore(resumed, LedgerRecord.from_dict(torch.load(path)[KEY]))
    resumed.load_state_dict(torch.load(path)["state_dict"])
    assert torch.equal(resumed.net.eval()(x), expected)
