"""An ultralytics model is rebuilt from its YAML, and only layers in it are built."""

from __future__ import annotations

import copy
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from prunerecover import Plan, apply_plan, load_pruned, plan_depth, save_pruned
from prunerecover.families.constructors import build, constructor_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ultralytics") is None, reason="ultralytics is not installed: pip install .[yolo]"),
]


@pytest.fixture(scope="module")
def tiny_yolo(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a YOLOv8n of 2 named classes after a forward pass."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("YOLO_CONFIG_DIR", str(tmp_path_factory.mktemp("settings")))
        patch.setenv("YOLO_OFFLINE", "true")
        from ultralytics import YOLO
        from ultralytics.nn.tasks import DetectionModel

        model = DetectionModel(copy.deepcopy(YOLO("yolov8n.yaml").model.yaml), nc=2, verbose=False).eval()
    model.names = {0: "cat", 1: "dog"}
    model(torch.zeros(1, 3, 64, 64))
    return model


@pytest.mark.parametrize("from_weights", [False, True])
def test_a_pruned_model_opens_without_the_dense_one(tiny_yolo: Any, tmp_path: Path, from_weights: bool) -> None:
    from ultralytics.nn.modules import Conv
    from ultralytics.nn.tasks import load_checkpoint

    torch.save({"model": tiny_yolo, "train_args": {}}, tmp_path / "weights.pt")
    model = load_checkpoint(tmp_path / "weights.pt")[0] if from_weights else copy.deepcopy(tiny_yolo)
    images = torch.rand(2, 3, 64, 64)
    plan = plan_depth(model, remove={"layer": 2}, batches=[images], importance="magnitude")
    apply_plan(model, plan)
    loaded: Any = load_pruned(save_pruned(model, plan, tmp_path / "pruned"))
    assert torch.equal(loaded(images)[0], model(images)[0])
    assert loaded.names == {0: "cat", 1: "dog"}
    assert torch.equal(loaded.stride, model.stride)
    assert not from_weights or all(module.inplace for module in loaded.modules() if hasattr(module, "inplace"))
    assert not Conv.default_act.inplace  # which other models share


def test_a_fused_model_shows_the_line_to_write(tiny_yolo: Any, tmp_path: Path) -> None:
    fused = copy.deepcopy(tiny_yolo).fuse(verbose=False)
    path = save_pruned(fused, Plan(), tmp_path / "pruned")
    with pytest.raises(ValueError, match=r"In one line: model = load_pruned\('.*pruned', YOLO\(.*\)\.model\)"):
        load_pruned(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row": [-1, 1, "torch_safe_load", ["evil.pt"]]}, "YAML of a network .*torch_safe_load"),
        ({"row": [-1, 1, "TorchVision", [8, "resnet18", "DEFAULT"]]}, "YAML of a network .*TorchVision"),
        ({"row": [-1, 1, "nn.Module.__init__", []]}, "YAML of a network .*__init__"),
        ({"row": [-1, 1, "Conv", [10**6, 3]]}, "Expected a YAML with widths and repeats up to 8192, but got 1000000"),
        ({"activation": "__import__('os').system('true')"}, "Expected an activation of torch.nn"),
        ({"activation": "nn.SiLU(print(1))"}, "Expected an activation of torch.nn"),
        ({"name": "torch_safe_load"}, "Expected the name of a model class of ultralytics.nn.tasks"),
        ({"yaml": None}, "Expected the YAML of a network of ultralytics, but got no layers"),
    ],
    ids=["function", "fetching", "no class", "memory", "code", "code in arguments", "no model", "no yaml"],
)
def test_a_file_cannot_name_code(tiny_yolo: Any, change: dict[str, Any], message: str) -> None:
    constructor = json.loads(json.dumps(constructor_of(tiny_yolo)))
    if "row" in change:
        constructor["yaml"]["backbone"][1] = change["row"]
    elif "activation" in change:
        constructor["yaml"]["activation"] = change["activation"]
    else:
        constructor |= {"ultralytics": change["name"]} if "name" in change else change
    with pytest.raises(ValueError, match=message):
        build(constructor)


def test_an_activation_of_torch_is_built(tiny_yolo: Any) -> None:
    constructor = json.loads(json.dumps(constructor_of(tiny_yolo)))
    constructor["yaml"]["activation"] = "nn.LeakyReLU(0.1)"
    assert any(isinstance(module, torch.nn.LeakyReLU) for module in build(constructor).modules())
