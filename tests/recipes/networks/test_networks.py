"""The networks of the recipes: CIFAR ResNets of the published sizes, and segmenters by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from cases.trainers import trainer_of
from torch import nn
from torch.nn import functional as F

from prunerecover import Budget, apply_plan, load_pruned, plan_width, save_pruned
from prunerecover.families.constructors import build, constructor_of
from prunerecover.recipes.data.image_data import ImageData
from prunerecover.recipes.networks import cifar_resnet
from prunerecover.recipes.networks.cifar_resnet import PaddedShortcut
from prunerecover.recipes.networks.model_names import preprocessing
from prunerecover.recipes.networks.segmentation_networks import build_segmenter, scores_of
from prunerecover.recipes.tasks.image_classifier import ImageClassifier


@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (110, 1.7)])
def test_parameters_are_those_of_the_paper(depth: int, millions: float) -> None:
    """He et al., arXiv 1512.03385, table 6."""
    model = timm.create_model(f"cifar_resnet{depth}")
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)
    weighted = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(weighted) == depth


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
def test_real_weights_score_what_others_measured(data_root: Path, tmp_path: Path, own_cache: Path) -> None:
    """About 92%, as published for ResNet-20; 400 images leave an interval of 3 points on either side."""
    weights = str(data_root / "models" / "resnet20_cifar10" / "model.safetensors")
    module = ImageClassifier("cifar_resnet20", model_kwargs={"checkpoint_path": weights})
    data = ImageData(str(data_root / "data" / "cifar10_lossless"), model="cifar_resnet20", num_workers=0)
    (found,) = trainer_of(tmp_path).test(module, data, verbose=False)
    assert len(data.datasets["test"]) == 400
    assert found["test_top1"] > 0.885


SIZE = (32, 64)
SEGFORMER = {"hidden_sizes": [8, 8, 16, 16], "depths": [1] * 4, "decoder_hidden_size": 16}


def test_scores_of_a_vision_transformer_are_a_linear_map_of_its_patch_tokens() -> None:
    sizes = {"embed_dim": 16, "depth": 2, "num_heads": 2}
    network: Any = build_segmenter("deit_tiny_patch16_224", 3, False, SIZE, sizes).eval()
    images = torch.randn(2, 3, *SIZE)
    tokens = network.backbone.forward_features(images)[:, 1:]
    by_patch = torch.einsum("ntd,cd->nct", tokens, network.head.weight) + network.head.bias[:, None]
    expected = F.interpolate(by_patch.reshape(2, 3, 2, 4), SIZE, mode="bilinear")
    torch.testing.assert_close(network(images), expected)


def test_folder_of_transformers_is_opened_with_a_head_for_the_classes(tmp_path: Path) -> None:
    trained = build_segmenter("segformer", 5, False, SIZE, dict(SEGFORMER)).eval()
    trained.save_pretrained(tmp_path / "mine")  # type: ignore[operator]
    again = build_segmenter(str(tmp_path / "mine"), 5, True, SIZE, {}).eval()
    images = torch.randn(1, 3, *SIZE)
    assert torch.equal(again(images).logits, trained(images).logits)
    other = build_segmenter(str(tmp_path / "mine"), 7, True, SIZE, {})
    assert scores_of(other(images), SIZE).shape == (1, 7, *SIZE)
    kept = "decode_head.linear_projections.0.proj.weight"
    name = kept if kept in trained.state_dict() else "decode_head.linear_c.0.proj.weight"
    assert torch.equal(other.state_dict()[name], trained.state_dict()[name])


@pytest.mark.parametrize("name", ["deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"])
def test_trained_networks_of_torchvision_get_a_layer_for_classes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import models

    get_model = models.get_model
    trained = get_model(name, weights=None, weights_backbone=None, num_classes=21)

    def opened(name: str, weights: str | None, **kwargs: Any) -> torch.nn.Module:
        return trained if weights == "DEFAULT" else get_model(name, weights=weights, **kwargs)

    monkeypatch.setattr(models, "get_model", opened)
    network = build_segmenter(name, 5, True, SIZE, {}).eval()
    theirs = trained.state_dict()
    moved = {name for name, value in network.state_dict().items() if torch.equal(value, theirs[name])}
    assert all(name.startswith("classifier") for name in network.state_dict().keys() - moved)
    assert "backbone.0.0.weight" in moved
    assert scores_of(network(torch.randn(1, 3, *SIZE)), SIZE).shape == (1, 5, *SIZE)


@pytest.mark.parametrize(
    ("name", "pretrained", "message"),
    [
        ("resnet18x", False, "'resnet18x' cannot be made as one: Unknown model"),
        ("bert", False, "semantic segmentation, but 'bert' is a bert. Try segformer"),
        ("nvidia/segformer-b0", False, "hub id that can be reached, but got.*or name another as model: the path of a"),
        ("/no/such/folder", False, "at /no/such/folder, but nothing is there"),
        ("segformer", True, "with pretrained weights, but 'segformer' is only a type of network"),
    ],
)
def test_other_names_are_refused(name: str, pretrained: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_segmenter(name, 5, pretrained, SIZE, {})


def test_weights_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_model(name: str, weights: str | None, **kwargs: Any) -> torch.nn.Module:
        if weights == "DEFAULT":
            raise OSError("no route to host")
        return torch.nn.Identity()

    monkeypatch.setattr("torchvision.models.get_model", get_model)
    with pytest.raises(ValueError, match="weights of lraspp_mobilenet_v3_large .* reachable.*torch.hub.get_dir"):
        build_segmenter("lraspp_mobilenet_v3_large", 5, True, SIZE, {})
