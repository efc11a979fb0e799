"""`prunerecover export` writes the module's computation; ONNX, torch.export and torch.compile take pruned models."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.files.lightning_files import Classifier, prune, rewrite, save, stirred
from cases.models.own_networks import OwnNetwork
from cases.models.tiny import tiny_images, tiny_llama, tiny_timm
from cases.serving.uneven import byte_tokenizer
from cases.tiny_plans import pruned
from torch import Tensor, nn

from prunerecover import Budget, apply_plan, load_pruned, plan_depth, plan_width, save_pruned
from prunerecover.recipes.cli.export import image_shape, open_for_export
from prunerecover.recipes.cli.main import main
from prunerecover.recipes.tasks.segmenter import ImageSegmenter

HERE = "cases.models.own_networks."
SIZES = {"patch_size": 4, "embed_dim": 16, "depth": 4, "num_heads": 2}


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ImageSegmenter]:
    """Return a checkpoint of a pruned segmenter, as written by the recipes."""
    module = stirred(ImageSegmenter(3, image_size=16, model_kwargs=SIZES))
    prune(module, "everything", "network.backbone")
    path = save(module, tmp_path_factory.mktemp("segmenter") / "last.ckpt")
    noted = {"_class_path": f"{ImageSegmenter.__module__}.ImageSegmenter"}
    rewrite(path, lambda checkpoint: checkpoint["hyper_parameters"].update(noted))
    return path, module.eval()


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Classifier]:
    module = stirred(Classifier())
    prune(module)
    return save(module, tmp_path_factory.mktemp("classifier") / "last.ckpt"), module.eval()


def images() -> Tensor:
    return torch.randn(2, 3, 16, 16)


@torch.no_grad()
def assert_same(network: Any, module: Any, given: Tensor) -> None:
    torch.testing.assert_close(network(given), module(given), rtol=1e-3, atol=1e-4)


def export(path: Path, output: Path | str, *options: str) -> int:
    return main(["export", str(path), "--output", str(output), *options])


def test_a_segmenter_is_exported_with_its_head(segmenter: tuple[Path, ImageSegmenter]) -> None:
    path, module = segmenter
    exported = open_for_export(path)
    assert exported.example == (3, 16, 16)
    assert_same(exported.network, module, images())


@pytest.mark.slow
def test_the_onnx_file_of_a_segmenter_scores_pixels(segmenter: tuple[Path, ImageSegmenter], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path, module = segmenter
    assert export(path, tmp_path / "model.onnx") == 0
    (found,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"images": (given := images()).numpy()})
    assert_same(lambda _: torch.from_numpy(found), module, given)


def test_sizes_are_fixed_if_asked(segmenter: tuple[Path, ImageSegmenter], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[tuple[int, ...], bool]] = []
    write = lambda network, path, dynamic, format, example_inputs: calls.append((tuple(example_inputs.shape), dynamic))  # noqa: E731
    monkeypatch.setattr("prunerecover.recipes.cli.export.write_network", write)
    for options in ([], ["--fixed-sizes", "--batch-size", "1"]):
        assert export(segmenter[0], "model.onnx", *options) == 0
    assert calls == [((2, 3, 16, 16), True), ((1, 3, 16, 16), False)]


def test_the_backbone_alone_must_be_asked_for(segmenter: tuple[Path, ImageSegmenter], tmp_path: Path) -> None:
    path, module = segmenter
    assert export(path, tmp_path / "out", "--target", "network.backbone") == 0
    assert_same(load_pruned(tmp_path / "out"), module.network.backbone, images())
    with pytest.warns(UserWarning, match=r"network at 'network.backbone' alone, but .* also holds network.head.weight"):
        load_pruned(path)


def segmenter_of_three() -> nn.Module:
    """Return the network of the segmenter before pruning."""
    return ImageSegmenter(3, image_size=16, model_kwargs=SIZES).network


def test_a_folder_holds_a_segmenter_with_its_head(segmenter: tuple[Path, ImageSegmenter], tmp_path: Path) -> None:
    path, module = segmenter
    assert export(path, tmp_path / "out") == 0
    again = open_for_export(tmp_path / "out", model=f"{__name__}.segmenter_of_three")
    assert (again.example, again.target) == ((3, 16, 16), "backbone")
    for network in (load_pruned(tmp_path / "out", segmenter_of_three()), again.network):
        assert_same(network, module, images())


class Two(Classifier):
    """A module with two networks."""

    def __init__(self) -> None:
        super().__init__()
        self.other = tiny_timm()


def test_a_folder_cannot_hold_two_pruned_networks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = stirred(Two())
    for target in ("net", "other"):
        prune(module, target=target)
    path = save(module, tmp_path / "last.ckpt")
    assert export(path, tmp_path / "out", "--model", f"{__name__}.Two") == 2
    assert "Expected an output that ends in one of .onnx, .pt2, .gguf for Two, but got" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_own_module_is_exported_by_its_class_path(classifier: tuple[Path, Classifier]) -> None:
    path, module = classifier
    exported = open_for_export(path, model="cases.files.lightning_files.Classifier")
    assert_same(exported.network, module, tiny_images())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--model with the class .*at 'net', such as beside.weight, beside.bias. To .* pass --target net."),
        (["--model", "nowhere.Classifier"], "Expected --model to be the class path .* but got 'nowhere.Classifier'"),
        (["--model", "Classifier"], "Expected --model to be the class path .* but got 'Classifier'"),
        (["--model", "cases.paths.Nothing"], "Expected --model to be the class path .* but got 'cases"),
        (["--model", f"{HERE}Takes"], "builds the dense network without arguments, but Takes does not"),
        (["--model", f"{HERE}no_network"], "what builds a network, but no_network gives int"),
    ],
)
def test_own_modules_are_named(
    classifier: Any, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(classifier[0], "model.onnx", *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)


def test_a_folder_of_an_own_network(tmp_path: Path) -> None:
    network = OwnNetwork().eval()
    plan = plan_width(network, Budget(params=0.3), batches=[images()], importance="magnitude")
    apply_plan(network, plan)
    save_pruned(network, plan, tmp_path / "pruned")
    exported = open_for_export(tmp_path / "pruned", model=f"{HERE}OwnNetwork")
    assert torch.equal(exported.network(given := images()), network(given))


def test_onnx_of_a_model_of_unknown_input_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"knows its input size, but Linear does not. Pass --input-size, such as"):
        image_shape(nn.Linear(2, 2))


@pytest.mark.parametrize("case", ["everything", pytest.param("attention constant", marks=pytest.mark.slow)])
def test_torch_export_takes_what_stands_in_for_units(case: str) -> None:
    """With batches of any size; merged networks are written as ONNX above."""
    model, _ = pruned(case)
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(model, (tiny_images(4),), dynamic_shapes=({0: batch},)).module()
    assert_same(exported, model, tiny_images(7, seed=2))


@pytest.mark.slow
def test_torch_compile_takes_what_stands_in_for_units() -> None:
    model, _ = pruned("everything")
    assert_same(torch.compile(model, fullgraph=True, backend="aot_eager"), model, tiny_images(seed=2))


@pytest.mark.slow
def test_a_folder_becomes_what_servers_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_llama(vocab_size=512).eval()
    plan = plan_depth(model, remove={"attention": 1}, batches=[torch.ones(2, 4, dtype=torch.long)])
    apply_plan(model, plan)
    pruned = save_pruned(model, plan, tmp_path / "pruned")
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    served, tokenizer = ("--format", "nemotron-nas"), ("--tokenizer", str(tmp_path / "tokenizer"))
    assert export(pruned, tmp_path / "served", *served) == 2
    assert "Expected tokenizer for served, but got None. Pass" in capsys.readouterr().err
    assert export(pruned, tmp_path / "served", *served, *tokenizer) == 0
    config = json.loads((tmp_path / "served" / "config.json").read_text())
    assert sum(block["attention"]["no_op"] for block in config["block_configs"]) == 1
    gguf = pytest.importorskip("gguf")
    assert export(pruned, tmp_path / "model.gguf", "--format", "gguf-q8_0", *tokenizer) == 0
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert kinds["output.weight"] == "Q8_0"
