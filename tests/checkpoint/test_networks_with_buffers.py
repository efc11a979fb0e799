"""Networks whose state holds more than parameters: BatchNorm's buffers, and versions of modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from cases.engine import unchanged
from safetensors.torch import load_file, save_file
from torch import nn

from prunerecover import Budget, apply_plan, load_pruned, plan_width, save_pruned

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
QUICK: dict[str, Any] = {"protection": "magnitude", "replace": "zero"}


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


def test_module_that_asks_for_the_version_of_its_state_opens(tmp_path: Path) -> None:
    model = mnasnet()
    again = load_pruned(pruned_folder(model, tmp_path / "pruned"), mnasnet())
    assert torch.equal(again(IMAGES), model(IMAGES))


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
