"""A torchvision model is rebuilt by name with any head; a model outside its builder's range is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_timm
from torch import nn
from torchvision.models import VisionTransformer, WeightsEnum, get_model, mobilenet_v3_large
from torchvision.ops import FrozenBatchNorm2d

from prunerecover import Plan, load_pruned, save_pruned
from prunerecover.families.constructors import build, constructor_of
from prunerecover.families.libraries.empty_models import on_meta_if_possible
from prunerecover.families.libraries.torchvision_constructor import torchvision_candidates
from prunerecover.model.hashing import tensors_hash

SMALL = "squeezenet1_1"
SLOW = pytest.mark.slow


def empty(name: str, **kwargs: Any) -> nn.Module:
    return on_meta_if_possible(lambda: get_model(name, weights=None, **kwargs))


def constructor(model: nn.Module) -> dict[str, Any]:
    found = constructor_of(model)
    assert found is not None
    again = build(json.loads(json.dumps(found)))
    assert (repr(again), tensors_hash(again)) == (repr(model), tensors_hash(model))
    return found


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("resnet18", {"num_classes": 3}),
        ("wide_resnet50_2", {"num_classes": 1000}),  # the names of the tensors of resnet50
        ("vit_b_32", {"num_classes": 5, "image_size": 64}),
        ("googlenet", {"num_classes": 7, "aux_logits": False, "init_weights": False, "transform_input": True}),
        ("fcn_resnet50", {"num_classes": 4, "aux_loss": True, "weights_backbone": None}),
        ("fasterrcnn_mobilenet_v3_large_fpn", {"num_classes": 3, "weights_backbone": None}),
        ("fasterrcnn_mobilenet_v3_large_320_fpn", {"num_classes": 3, "weights_backbone": None, "min_size": 96}),
        pytest.param("ssdlite320_mobilenet_v3_large", {"num_classes": 6, "weights_backbone": None}, marks=SLOW),
        pytest.param("keypointrcnn_resnet50_fpn", {"num_keypoints": 4, "weights_backbone": None}, marks=SLOW),
        pytest.param("swin_t", {"num_classes": 6}, marks=SLOW),
        pytest.param("raft_small", {}, marks=SLOW),
    ],
)
def test_the_name_and_arguments_are_found(name: str, kwargs: dict[str, Any]) -> None:
    found = constructor(empty(name, **kwargs))
    assert found["torchvision"] == name
    assert {**kwargs, "weights_backbone": None}.items() <= {**found["kwargs"], "weights_backbone": None}.items()


def _replaced(name: str, path: str, head: nn.Module) -> nn.Module:
    model = empty(name)
    model.set_submodule(path, head)
    return model


@pytest.mark.parametrize(
    ("name", "path", "head"),
    [("vit_b_32", "heads.head", nn.Linear(768, 10)), (SMALL, "classifier.1", nn.Conv2d(512, 10, 1))],
)
def test_a_head_that_was_put_in_later_is_seen(name: str, path: str, head: nn.Module) -> None:
    assert constructor(_replaced(name, path, head))["kwargs"]["num_classes"] == 10


@pytest.mark.slow
def test_frozen_norms_of_a_pretrained_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builders freeze norms where they fetch weights, but rebuilding never fetches weights."""
    monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda *_, **__: mobilenet_v3_large().state_dict())
    model = get_model("fasterrcnn_mobilenet_v3_large_320_fpn", weights_backbone="IMAGENET1K_V1", num_classes=3)
    monkeypatch.undo()
    assert any(isinstance(module, FrozenBatchNorm2d) for module in model.modules())
    again = build(constructor(model))
    again.load_state_dict(model.state_dict(), assign=True)
    images = [torch.rand(3, 64, 64)]
    expected, found = model.eval()(images), again.eval()(images)
    assert torch.equal(expected[0]["boxes"], found[0]["boxes"])


def _longer() -> nn.Module:
    model = empty("resnet18")
    model.layer1.append(nn.Identity())
    return model


@pytest.mark.parametrize(
    "make",
    [
        _longer,
        lambda: _replaced("resnet18", "fc", nn.Sequential(nn.Linear(512, 10))),
        lambda: _replaced("resnet18", "relu", nn.SiLU()),
    ],
    ids=["longer", "own head", "own activation"],
)
def test_what_its_builder_does_not_make_has_no_constructor(make: Callable[[], nn.Module]) -> None:
    assert constructor_of(make()) is None


def test_a_model_of_a_known_class_but_other_sizes_has_no_name() -> None:
    """Images of 16 pixels are no multiple of the patches of `vit_b_32`."""
    model = VisionTransformer(16, 4, 2, 4, 16, 32, num_classes=3)
    assert list(torchvision_candidates(model)) == []


def test_a_file_that_needs_its_owner_shows_the_line_to_write(tmp_path: Path) -> None:
    path = save_pruned(tiny_timm(norm_layer=nn.LayerNorm), Plan(), tmp_path / "pruned")
    with pytest.raises(ValueError, match=r"In one line: model = load_pruned\('.*', VisionTransformer\(\.\.\.\)\)$"):
        load_pruned(path)
