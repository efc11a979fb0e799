"""The exported file of a pruned network of every task computes what the network does, on batches of any size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.detection.networks import tiny_detr, tiny_ssd
from cases.models.tiny import tiny_images, tiny_inputs, tiny_llama, tiny_timm
from torch import nn

from prunerecover import Budget, apply_plan, export, plan_depth, plan_width
from prunerecover.recipes.networks.detectors.build import detector_of
from prunerecover.recipes.tasks.segmenter import ImageSegmenter

onnxruntime = pytest.importorskip("onnxruntime")
Built = tuple[nn.Module, Callable[[int], Any]]


def squares(model: nn.Module, batch: Any) -> torch.Tensor:
    output = model(batch)
    return (output["logits"] if isinstance(output, dict) else output).square().mean()


def narrowed(model: nn.Module, batch: Any) -> nn.Module:
    apply_plan(model, plan_width(model, Budget(macs=0.1), batches=[batch], loss=squares))
    return model


def classifier() -> Built:
    return narrowed(tiny_timm().eval(), tiny_images()), tiny_images


def segmenter() -> Built:
    sizes = {"patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}
    network = ImageSegmenter(3, image_size=16, model_kwargs=sizes).network.eval()
    return narrowed(network, tiny_images()), tiny_images


def pixels(samples: int) -> torch.Tensor:
    return torch.rand(samples, 3, 64, 64, generator=torch.Generator().manual_seed(samples))


def ssd() -> Built:
    return narrowed(detector_of(tiny_ssd()).eval(), pixels(2)), pixels


def detr() -> Built:
    return narrowed(detector_of(tiny_detr(), 64).eval(), pixels(2)), pixels


def tokens(samples: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 30, (samples, 5 + samples), generator=torch.Generator().manual_seed(samples))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    return {"input_ids": ids, "attention_mask": mask}


def llama() -> Built:
    model = tiny_llama().eval()
    apply_plan(model, plan_depth(model, remove={"attention": 1}, batches=[tiny_inputs("text")] * 4))
    return model, tokens


TASKS = {
    "classification": classifier,
    "segmentation": segmenter,
    "ssd": ssd,
    "detr": detr,
    "language": llama,
}
CASES = [
    pytest.param(name, ending, marks=() if (name, ending) == ("segmentation", ".pt2") else pytest.mark.slow)
    for name in TASKS
    for ending in (".onnx", ".pt2")
]


def run(path: Path, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    if path.suffix == ".pt2":
        return list(torch.export.load(path).module()(*inputs.values()).values())
    session = onnxruntime.InferenceSession(path)
    assert [entry.name for entry in session.get_inputs()] == list(inputs)
    return [torch.from_numpy(a) for a in session.run(None, {name: value.numpy() for name, value in inputs.items()})]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ending"), CASES)
def test_a_pruned_network_computes_the_same_from_its_file(name: str, ending: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, batch = TASKS[name]()
    assert export(network, tmp_path / "out" / f"model{ending}", batch(2)) == tmp_path / "out" / f"model{ending}"
    other = batch(3)
    given = other if isinstance(other, dict) else {"pixels" if name in ("ssd", "detr") else "images": other}
    found = run(tmp_path / "out" / f"model{ending}", given)
    with torch.no_grad():
        output: Any = network(**other) if isinstance(other, dict) else network(other)
    wanted = {"logits": output.logits} if name == "language" else output
    wanted = list(wanted.values()) if isinstance(wanted, dict) else [wanted]
    seen = given["attention_mask"].bool() if name == "language" else ...
    for one, value in zip(found, wanted, strict=True):
        torch.testing.assert_close(one[seen], value[seen], atol=1e-3, rtol=1e-3)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.linear(left) + right


def test_two_inputs_keep_their_names_and_a_single_sample_is_enough(tmp_path: Path) -> None:
    model = Sum().train()
    path = export(model, tmp_path / "sum.onnx", {"left": torch.ones(1, 3), "right": torch.ones(1, 3)})
    left, right = torch.randn(5, 3), torch.randn(5, 3)
    (found,) = run(path, {"left": left, "right": right})
    torch.testing.assert_close(found, model(left, right), atol=1e-3, rtol=1e-3)
    assert model.training


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in \.onnx or \.pt2, but got '.*model\.pt'. A folder .* save_pruned"):
        export(nn.Linear(2, 2), tmp_path / "model.pt", torch.ones(2, 2))


class Counts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(x.sum())


def test_what_cannot_be_traced_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected a network that torch.export can trace .* but Counts is none"):
        export(Counts(), tmp_path / "model.pt2", torch.ones(2, 2))
    assert not list(tmp_path.iterdir())


def test_a_file_that_computes_something_else_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunerecover.checkpoint.export._run_program", lambda *_: {"output": torch.full((2, 2), 9.0)})
    with pytest.raises(ValueError, match="to compute what the model does, but its output 'output' differs by up to"):
        export(nn.Linear(2, 2), tmp_path / "model.pt2", torch.ones(2, 2))
    assert not list(tmp_path.iterdir())
