"""The CIFAR networks have the published sizes, and their shortcut is the published option A."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from prunerecover import Budget, apply_plan, load_pruned, plan_width, save_pruned
from prunerecover.cost.macs import count_macs
from prunerecover.families.constructors import build, constructor_of
from prunerecover.recipes.networks import cifar_resnet
from prunerecover.recipes.networks.cifar_resnet import PaddedShortcut
from prunerecover.recipes.networks.model_names import preprocessing
from prunerecover.recipes.tasks.image_classifier import ImageClassifier


@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)])
def test_parameters_are_those_of_the_paper(depth: int, millions: float) -> None:
    """He et al., arXiv 1512.03385, table 6."""
    model = timm.create_model(f"cifar_resnet{depth}")
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)
    weighted = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(weighted) == depth


def test_macs_of_resnet20() -> None:
    """By hand: every stage has the same cost, but for its first convolution where the channels double."""
    same = 9 * 16 * 16 * 32 * 32
    by_hand = 9 * 3 * 16 * 32 * 32 + 6 * same + 2 * (5 * same + same // 2) + 64 * 10
    assert count_macs(timm.create_model("cifar_resnet20"), torch.zeros(1, 3, 32, 32)) == by_hand


def test_shortcut_equals_a_strided_convolution_with_ones() -> None:
    conv = nn.Conv2d(16, 32, 1, stride=2, bias=False)
    nn.init.zeros_(conv.weight)
    with torch.no_grad():
        conv.weight[8:24, :, 0, 0] = torch.eye(16)
    x = torch.randn(2, 16, 8, 8)
    assert torch.equal(PaddedShortcut(16)(x), conv(x))


def test_classifier_finds_them_by_name() -> None:
    assert preprocessing("cifar_resnet20")["input_size"] == (3, 32, 32)
    module = ImageClassifier("cifar_resnet20", num_classes=7)
    assert isinstance(module.model, cifar_resnet.CifarResNet)
    assert module(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_narrowed_networks_are_rebuilt_from_their_folder(tmp_path: Path) -> None:
    model = timm.create_model("cifar_resnet20", num_classes=7).eval()
    images = torch.randn(2, 3, 32, 32)
    plan = plan_width(model, Budget(macs=0.3), batches=[(images, torch.tensor([0, 1]))])
    assert plan.source.constructor == {"timm": "cifar_resnet20", "kwargs": {"num_classes": 7}}
    apply_plan(model, plan)
    again = load_pruned(save_pruned(model, plan, tmp_path / "pruned"))
    assert torch.equal(again(images), model(images))


def test_a_process_that_does_not_know_the_name_is_told_to_import(monkeypatch: pytest.MonkeyPatch) -> None:
    constructor = constructor_of(timm.create_model("cifar_resnet20"))
    assert constructor is not None
    monkeypatch.setattr(timm, "is_model", lambda name: False)  # as before the import
    with pytest.raises(ValueError, match="was the module that registers it not imported yet"):
        build(constructor)


@pytest.mark.data
def test_real_weights_score_what_others_measured(data_root: Path) -> None:
    """About 92%, as published for ResNet-20; 400 images leave an interval of 3 points on either side."""
    import numpy as np
    import pyarrow.parquet as pq
    from PIL import Image

    weights = data_root / "models" / "resnet20_cifar10" / "model.safetensors"
    model = timm.create_model("cifar_resnet20", checkpoint_path=str(weights)).eval()
    table = pq.read_table(data_root / "data" / "cifar10_lossless" / "test.parquet").to_pylist()
    pixels = np.stack([np.array(Image.open(io.BytesIO(row["img"]["bytes"])).convert("RGB")) for row in table])
    mean, std = (torch.tensor(cifar_resnet.CONFIG[name]).view(3, 1, 1) for name in ("mean", "std"))
    images = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - mean) / std
    with torch.inference_mode():
        hits = model(images).argmax(1) == torch.tensor([row["label"] for row in table])
    assert hits.float().mean() > 0.885
