"""A pruned model is an ordinary one: ONNX, torch.export and torch.compile take it before and after merging."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from cases.models.tiny import tiny_images, tiny_timm
from cases.tiny_plans import VIT, tiny_plan
from torch import nn

from prunerecover import apply_plan, load_pruned, merge, save_pruned

CASES = [
    pytest.param(("everything", True), id="everything-merged"),
    pytest.param(("everything", False), id="everything-unmerged", marks=pytest.mark.slow),
    pytest.param(("attention constant", False), id="attention constant-unmerged"),
    pytest.param(("activation slope and bias", True), id="activation slope and bias-merged", marks=pytest.mark.slow),
]


@pytest.fixture(params=CASES)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> nn.Module:
    """A pruned ViT as its user gets it: from the folder."""
    case, merged = request.param
    dense = tiny_timm()
    plan = tiny_plan(dense, *VIT[case])
    apply_plan(dense, plan)
    if merged:
        plan = plan + merge(dense)
    return load_pruned(save_pruned(dense, plan, tmp_path / "pruned"))


def test_torch_export(model: nn.Module) -> None:
    exported = torch.export.export(model, (tiny_images(),)).module()
    torch.testing.assert_close(exported(tiny_images(seed=2)), model(tiny_images(seed=2)))


def test_another_batch_size(model: nn.Module) -> None:
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(model, (tiny_images(4),), dynamic_shapes=({0: batch},)).module()
    torch.testing.assert_close(exported(tiny_images(7)), model(tiny_images(7)))


@pytest.mark.slow
def test_onnx(model: nn.Module, tmp_path: Path) -> None:
    import onnxruntime

    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (tiny_images(),), str(path), dynamo=True, input_names=["images"], verbose=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    images = tiny_images(seed=2)
    (logits,) = session.run(None, {"images": images.numpy()})
    assert (torch.from_numpy(logits) - model(images)).abs().max() <= 1e-3


@pytest.mark.slow
def test_torch_compile(model: nn.Module) -> None:
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(tiny_images(seed=2)), model(tiny_images(seed=2)), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_training_a_compiled_model(model: nn.Module) -> None:
    """Gradients reach every parameter that is left, replacements too."""
    model.compile(fullgraph=True)
    model(tiny_images()).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
