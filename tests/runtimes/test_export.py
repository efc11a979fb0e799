"""The exported file of a pruned network of every task computes the network's outputs, on batches of any size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.detection.networks import tiny_detr, tiny_ssd
from cases.models.tiny import tiny_images, tiny_inputs, tiny_llama, tiny_mixture, tiny_timm
from torch import Tensor, nn

from prunerecover import Budget, apply_plan, export, plan_depth, plan_width
from prunerecover.model.batches import ModelInputs, as_inputs, call
from prunerecover.recipes.networks.detectors.build import detector_of
from prunerecover.recipes.tasks.segmenter import ImageSegmenter
from prunerecover.refusal import Refusal
from prunerecover.runtimes.named_network import NamedNetwork

onnxruntime = pytest.importorskip("onnxruntime")
Built = tuple[nn.Module, Callable[[int], Any]]


def squares(model: nn.Module, batch: Any) -> Tensor:
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


def pixels(samples: int) -> Tensor:
    return torch.rand(samples, 3, 64, 64, generator=torch.Generator().manual_seed(samples))


def ssd() -> Built:
    return narrowed(detector_of(tiny_ssd()).eval(), pixels(2)), pixels


def detr() -> Built:
    return narrowed(detector_of(tiny_detr(), 64).eval(), pixels(2)), pixels


def tokens(samples: int) -> dict[str, Tensor]:
    ids = torch.randint(0, 30, (samples, 5 + samples), generator=torch.Generator().manual_seed(samples))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    return {"input_ids": ids, "attention_mask": mask}


def llama() -> Built:
    model = tiny_llama().eval()
    apply_plan(model, plan_depth(model, remove={"attention": 1}, batches=[tiny_inputs("text")] * 4))
    return model, tokens


TASKS = {"classification": classifier, "segmentation": segmenter, "ssd": ssd, "detr": detr, "language": llama}


def run(path: Path, inputs: dict[str, Tensor]) -> list[Tensor]:
    if path.suffix == ".pt2":
        return list(torch.export.load(path).module()(*inputs.values()).values())
    session = onnxruntime.InferenceSession(path)
    assert [entry.name for entry in session.get_inputs()] == list(inputs)
    return [torch.from_numpy(a) for a in session.run(None, {name: value.numpy() for name, value in inputs.items()})]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".onnx", ".pt2"])
@pytest.mark.parametrize("name", TASKS)
def test_a_pruned_network_computes_the_same_from_its_file(name: str, ending: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, batch = TASKS[name]()
    path = tmp_path / "out" / f"model{ending}"
    assert export(network, path, batch(2)) == path
    other = batch(3)
    given = other if name == "language" else {"pixels" if name in ("ssd", "detr") else "images": other}
    with torch.no_grad():
        output: Any = call(network, as_inputs(other))
    wanted = {"logits": output.logits} if name == "language" else output
    wanted = list(wanted.values()) if isinstance(wanted, dict) else [wanted]
    seen = given["attention_mask"].bool() if name == "language" else ...
    for one, value in zip(run(path, given), wanted, strict=True):
        torch.testing.assert_close(one[seen], value[seen], atol=1e-3, rtol=1e-3)


class Tangled(nn.Module):
    """Inputs inside a mapping; names shared by inputs, outputs and operations; a tensor with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, sample: Tensor, relu: Tensor, added: dict[str, Any]) -> dict[str, Any]:
        found = self.linear(sample).relu() + relu * added["time"] * added["factor"]
        return {"sample": found, "again": found, "relu": relu, "nothing": None}


@pytest.mark.slow
def test_names_are_those_of_forward_whatever_outputs_and_operations_are_called(tmp_path: Path) -> None:
    model = Tangled().train()
    one = torch.ones(1, 3)
    path = export(model, tmp_path / "m.onnx", {"sample": one, "relu": one, "added": {"time": one, "factor": 2}})
    sample, relu, time = torch.randn(3, 5, 3)
    session = onnxruntime.InferenceSession(path)
    assert [entry.name for entry in session.get_outputs()] == ["output_sample", "again", "output_relu"]
    found = run(path, {"sample": sample, "relu": relu, "added.time": time})
    wanted = list(model(sample, relu, {"time": time, "factor": 2}).values())[:3]
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)
    assert model.training


class Both(nn.Module):
    def forward(self, a: Tensor, *others: Tensor) -> Tensor:
        return sum(others, a)


def test_inputs_that_forward_does_not_name_are_numbered() -> None:
    images = torch.ones(2, 3, 4, 4)
    assert NamedNetwork(Both(), ModelInputs((images,))).names == ["images"]
    assert NamedNetwork(Both(), ModelInputs((images, images))).names == ["a", "input_1"]
    two = NamedNetwork(nn.Bilinear(2, 2, 2), ModelInputs(kwargs={"input1": images, "input2": images[0]}))
    assert two.names == ["input1", "input2"]


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"ends in one of \.onnx, \.pt2, \.gguf, but got '.*model\.pt'. A folder .* save_pruned"
    ):
        export(nn.Linear(2, 2), tmp_path / "model.pt", torch.ones(2, 2))


def test_a_program_keeps_an_example_without_its_batch_in_the_usual_order(tmp_path: Path) -> None:
    batch = torch.rand(500, 3, 8, 8).to(memory_format=torch.channels_last)
    path = export(nn.Conv2d(3, 2, 1), tmp_path / "model.pt2", batch[:2], dynamic=False)
    assert path.stat().st_size < batch.nbytes / 5
    assert torch.export.load(path).example_inputs[0][0].is_contiguous()


class OfThree(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(6.0).view(3, 2)


def test_a_network_of_one_size_is_written_with_fixed_sizes(tmp_path: Path) -> None:
    given, path = torch.ones(3, 2), tmp_path / "model.pt2"
    with pytest.raises(Refusal, match=r"free sizes, but OfThree is none .*'x' .* than 3 in dimension 0") as refused:
        export(OfThree(), path, given)
    assert "pass dynamic=False" in refused.value.way_out
    assert not list(tmp_path.iterdir())
    assert torch.equal(run(export(OfThree(), path, given, dynamic=False), {"x": given})[0], OfThree()(given))
    with pytest.raises(TypeError, match="Expected argument dynamic to be True or False, but got 'no'"):
        export(OfThree(), path, given, dynamic="no")  # type: ignore[arg-type]


def test_texts_of_one_token_have_no_free_length(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="'input' have no other size than 1 in dimension 1"):
        export(nn.Embedding(9, 3), tmp_path / "model.pt2", torch.ones(2, 1, dtype=torch.long))


class Counts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.sum())


class Nested(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return {"boxes": [x]}


def test_what_cannot_be_traced_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = r"trace with the sizes of the example, but Counts is none \(.* at test_export.py:\d+, `return x \* float"
    with pytest.raises(Refusal, match=message):
        export(Counts(), tmp_path / "model.pt2", torch.ones(2, 2))
    with pytest.raises(Refusal, match="mapping with tensors, but Nested gives dict of list. Export a module around it"):
        export(Nested(), tmp_path / "model.pt2", torch.ones(2, 2))
    with pytest.raises(ValueError, match="Expected example_inputs that Linear can be called with, but its forward"):
        export(nn.Linear(2, 2), tmp_path / "model.pt2", torch.ones(2, 3))
    assert not list(tmp_path.iterdir())
    assert "def forward" not in capsys.readouterr().err


@torch.library.custom_op("prunerecover_tests::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Doubles(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return doubled(x)


@pytest.mark.slow
def test_errors_of_the_exporter_and_of_the_runtime_are_ours(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"torch.onnx can convert, but .*doubled.* Write a program of torch.export"):
        export(Doubles(), tmp_path / "model.onnx", torch.ones(2, 2))
    with pytest.raises(Refusal, match="but onnxruntime does not run it .* Export in float32"):
        export(nn.Linear(2, 2).bfloat16(), tmp_path / "model.onnx", torch.ones(2, 2, dtype=torch.bfloat16))


@pytest.mark.slow
def test_routed_experts_are_written_by_products_that_onnx_has(tmp_path: Path) -> None:
    model = tiny_mixture("mixtral").eval()
    before = model.config.to_dict()
    path = export(model, tmp_path / "model.onnx", tokens(2))
    assert model.config.to_dict() == before
    assert model.config._experts_implementation == "grouped_mm"
    given = tokens(3)
    with torch.no_grad():
        wanted = model(**given).logits
    seen = given["attention_mask"].bool()
    torch.testing.assert_close(run(path, given)[0][seen], wanted[seen], atol=1e-3, rtol=1e-3)


def test_a_format_is_one_of_those_and_fits_the_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected a format of onnx, pt2, gguf, .* but got 'gguf-q4'. Name one"):
        export(nn.Linear(2, 2), tmp_path / "model.gguf", format="gguf-q4")
    with pytest.raises(
        ValueError, match=r"ends in \.gguf for the format 'gguf', but got '.*model\.pt2'. Change the one"
    ):
        export(nn.Linear(2, 2), tmp_path / "model.pt2", format="gguf")
    with pytest.raises(ValueError, match="Expected example_inputs for model.pt2, but got None. Pass a batch"):
        export(nn.Linear(2, 2), tmp_path / "model.pt2")
    with pytest.raises(ValueError, match="Expected a folder for the format 'nemotron-nas', but got"):
        export(nn.Linear(2, 2), tmp_path / "model.gguf", format="nemotron-nas")
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(FileExistsError, match="Expected nothing at .*, or an empty folder, but got content. Give"):
        export(nn.Linear(2, 2), tmp_path, format="nemotron-nas", tokenizer=object())


def test_a_file_that_computes_something_else_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunerecover.runtimes.program_file._run_program", lambda *_: [torch.full((2, 2), 9.0)])
    with pytest.raises(Refusal, match="to compute the model's outputs, but its output 'output' differs by up to"):
        export(nn.Linear(2, 2), tmp_path / "model.pt2", torch.ones(2, 2))
    assert not list(tmp_path.iterdir())
