"""Detectors by name: heads for other classes, weights from files, and messages without a network connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
from cases.detection.networks import tiny_detr, tiny_ssd
from safetensors.torch import save_file
from torch import nn

from prunerecover.recipes.networks.detectors.build import named_detector
from prunerecover.recipes.networks.torchvision_weights import with_trained_layers


@pytest.fixture
def ssd_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace all builders of torchvision by the tiny SSD; its pretrained weights cannot be downloaded."""

    def get_model(name: str, weights: Any = None, num_classes: int = 4, **_: Any) -> nn.Module:
        if weights == "DEFAULT":
            raise URLError("no network")
        return tiny_ssd(num_classes - 1)

    monkeypatch.setattr("torchvision.models.get_model", get_model)


NAME = "ssd300_vgg16"
pytestmark = pytest.mark.usefixtures("ssd_by_name")


@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
def test_weights_of_a_file(tmp_path: Path, ending: str) -> None:
    trained = tiny_ssd()
    path = tmp_path / f"weights{ending}"
    (save_file if ending == ".safetensors" else torch.save)(trained.state_dict(), path)
    found = named_detector(NAME, False, None, 64, {"checkpoint_path": str(path)})
    assert all(torch.equal(a, b) for a, b in zip(found.model.parameters(), trained.parameters(), strict=True))


def test_weights_for_other_classes_leave_the_scores_untrained(tmp_path: Path) -> None:
    trained = tiny_ssd(7)
    torch.save(trained.state_dict(), tmp_path / "weights.pth")
    with pytest.warns(UserWarning, match=r"are for other classes: head\.classification_head"):
        found = named_detector(NAME, False, 3, 64, {"checkpoint_path": str(tmp_path / "weights.pth")})
    assert found.classes == 4
    theirs = dict(trained.named_parameters())
    same = {name for name, value in found.model.named_parameters() if torch.equal(value, theirs[name])}
    assert theirs.keys() - same == {name for name in theirs if "classification_head" in name}


@pytest.mark.parametrize(
    ("name", "pretrained", "more", "message"),
    [
        (NAME, False, {"checkpoint_path": "none.pth"}, "Expected a file of weights at none.pth, but there is none"),
        (NAME, False, {"checkpoint_path": "other.pth"}, "Expected weights of SSD at .* tensors do not fit, such as"),
        (NAME, True, {}, "weights of ssd300_vgg16 .* Without a network, .*checkpoint_path.* names a file of weights"),
        ("nobody/none", True, {}, "to be a folder as transformers saves it, or a hub id that can be reached"),
        ("resnet50", True, {}, "a detector of torchvision, such as ssdlite320.*but got 'resnet50'"),
    ],
)
def test_what_is_not_there_is_refused(in_tmp: Path, name: str, pretrained: bool, more: Any, message: str) -> None:
    torch.save({"fc.weight": torch.zeros(2, 2)}, "other.pth")
    with pytest.raises(ValueError, match=message):
        named_detector(name, pretrained, None, 64, more)


def test_trained_layers_but_the_head_of_other_classes() -> None:
    model, trained = tiny_ssd(3), tiny_ssd(7)
    mine = model.head.classification_head.module_list[0].weight.clone()
    found: Any = with_trained_layers(model, trained)
    assert torch.equal(found.backbone.body[0][0].weight, trained.backbone.body[0][0].weight)
    assert torch.equal(found.head.classification_head.module_list[0].weight, mine)


def test_a_folder_of_transformers(tmp_path: Path) -> None:
    trained = tiny_detr(5)
    trained.save_pretrained(tmp_path)
    as_saved, fresh = (named_detector(str(tmp_path), True, classes, 64, {}) for classes in (None, 3))
    assert (as_saved.classes, fresh.classes) == (5, 3)
    theirs = trained.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in as_saved.model.state_dict().items())
    assert torch.equal(fresh.model.bbox_predictor.layers[0].weight, trained.bbox_predictor.layers[0].weight)  # type: ignore
