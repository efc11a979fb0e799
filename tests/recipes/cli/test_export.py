"""`prunerecover export` writes the module's computation; ONNX, torch.export and torch.compile take pruned models."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest
import torch
from cases.files.lightning_files import Classifier, prune, rewrite, save, stirred
from cases.models.own_networks import OwnNetwork
from cases.models.tiny import tiny_images, tiny_llama, tiny_timm
from cases.serving.uneven import byte_tokenizer
from cases.tiny_plans import VIT, tiny_plan
from torch import Tensor, nn

from prunerecover import Budget, apply_plan, load_pruned, merge, plan_depth, plan_width, save_pruned
from prunerecover.recipes.cli.export import image_shape, open_for_export
from prunerecover.recipes.cli.main import main
from prunerecover.recipes.tasks.segmenter import ImageSegmenter

HERE = "cases.models.own_networks."
SIZES = {"patch_size": 4, "embed_dim": 16, "depth": 4, "num_heads": 2}


@pytest.fixture
def segmenter(tmp_path: Path) -> tuple[Path, ImageSegmenter]:
    """Return a checkpoint of a pruned segmenter, as written by the recipes."""
    module = stirred(ImageSegmenter(3, image_size=16, model_kwargs=SIZES))
    prune(module, "everything", "network.backbone")
    path = save(module, tmp_path / "last.ckpt")
    noted = {"_class_path": f"{ImageSegmenter.__module__}.ImageSegmenter"}
    rewrite(path, lambda checkpoint: checkpoint["hyper_parameters"].update(noted))
    return path, module.eval()


def images() -> Tensor:
    return torch.randn(2, 3, 16, 16)


def test_a_segmenter_is_exported_with_its_head(segmenter: tuple[Path, ImageSegmenter]) -> None:
    path, module = segmenter
    exported = open_for_export(path)
    assert exported.example == (3, 16, 16)
    given = images()
    with torch.no_grad():
        torch.testing.assert_close(exported.network(given), module(given), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_the_onnx_file_of_a_segmenter_scores_pixels(segmenter: tuple[Path, ImageSegmenter], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path, module = segmenter
    assert main(["export", str(path), "--output", str(tmp_path / "model.onnx")]) == 0
    (found,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"images": (given := images()).numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), module(given), rtol=1e-3, atol=1e-4)


def test_sizes_are_fixed_if_asked(segmenter: tuple[Path, ImageSegmenter], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[tuple[int, ...], bool]] = []
    write = lambda network, path, dynamic, format, example_inputs: calls.append((tuple(example_inputs.shape), dynamic))  # noqa: E731
    monkeypatch.setattr("prunerecover.recipes.cli.export.write_network", write)
    for options in ([], ["--fixed-sizes", "--batch-size", "1"]):
        assert main(["export", str(segmenter[0]), "--output", "model.onnx", *options]) == 0
    assert calls == [((2, 3, 16, 16), True), ((1, 3, 16, 16), False)]


def test_the_backbone_alone_must_be_asked_for(segmenter: tuple[Path, ImageSegmenter], tmp_path: Path) -> None:
    path, module = segmenter
    assert main(["export", str(path), "--output", str(tmp_path / "out"), "--target", "network.backbone"]) == 0
    given = images()
    with torch.no_grad():
        expected = module.network.backbone(given)
        torch.testing.assert_close(load_pruned(tmp_path / "out")(given), expected, rtol=1e-3, atol=1e-4)


def segmenter_of_three() -> torch.nn.Module:
    """Return the network of the segmenter before pruning."""
    return ImageSegmenter(3, image_size=16, model_kwargs=SIZES).network


def test_a_folder_holds_a_segmenter_with_its_head(segmenter: tuple[Path, ImageSegmenter], tmp_path: Path) -> None:
    path, module = segmenter
    assert main(["export", str(path), "--output", str(tmp_path / "out")]) == 0
    given = images()
    again = open_for_export(tmp_path / "out", model=f"{__name__}.segmenter_of_three")
    assert again.example == (3, 16, 16)
    assert again.target == "backbone"
    with torch.no_grad():
        for network in (load_pruned(tmp_path / "out", segmenter_of_three()), again.network):
            torch.testing.assert_close(network(given), module(given), rtol=1e-3, atol=1e-4)


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
    assert main(["export", str(path), "--output", str(tmp_path / "out"), "--model", f"{__name__}.Two"]) == 2
    assert "Expected an output that ends in one of .onnx, .pt2, .gguf for Two, but got" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_load_pruned_says_what_it_leaves_out(segmenter: tuple[Path, ImageSegmenter]) -> None:
    with pytest.warns(UserWarning, match=r"network at 'network.backbone' alone, but .* also holds network.head.weight"):
        load_pruned(segmenter[0])


@pytest.fixture
def classifier(tmp_path: Path) -> tuple[Path, Classifier]:
    module = stirred(Classifier())
    prune(module)
    return save(module, tmp_path / "last.ckpt"), module.eval()


def test_an_own_module_must_be_named(classifier: tuple[Path, Classifier], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(classifier[0]), "--output", "model.onnx"]) == 2
    message = capsys.readouterr().err
    assert "holds more than the pruned network at 'net', such as beside.weight, beside.bias" in message
    assert "--model with the class path of the LightningModule" in message
    assert "pass --target net." in message


def test_an_own_module_is_exported_by_its_class_path(classifier: tuple[Path, Classifier]) -> None:
    path, module = classifier
    exported = open_for_export(path, model="cases.files.lightning_files.Classifier")
    with torch.no_grad():
        torch.testing.assert_close(exported.network(tiny_images()), module(tiny_images()), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.Classifier", "Expected --model to be the class path .* but got 'nowhere.Classifier'"),
        ("Classifier", "Expected --model to be the class path .* but got 'Classifier'"),
        ("cases.files.lightning_files.Nothing", "Expected --model to be the class path .* but got 'cases"),
        (f"{HERE}Takes", "builds the dense network without arguments, but Takes does not"),
        (f"{HERE}no_network", "what builds a network, but no_network gives int"),
    ],
)
def test_a_wrong_class_path_is_one_line(
    classifier: tuple[Path, Classifier], name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(classifier[0]), "--output", "model.onnx", "--model", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)


def test_a_folder_of_an_own_network(tmp_path: Path) -> None:
    network = OwnNetwork().eval()
    plan = plan_width(network, Budget(params=0.3), batches=[images()], importance="magnitude")
    apply_plan(network, plan)
    save_pruned(network, plan, tmp_path / "pruned")
    exported = open_for_export(tmp_path / "pruned", model=f"{HERE}OwnNetwork")
    given = images()
    assert torch.equal(exported.network(given), network(given))


def test_onnx_of_a_model_of_unknown_input_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"knows its input size, but Linear does not. Pass --input-size, such as"):
        image_shape(torch.nn.Linear(2, 2))


CASES = [
    pytest.param(("everything", True), id="everything-merged"),
    pytest.param(("everything", False), id="everything-unmerged", marks=pytest.mark.slow),
    pytest.param(("attention constant", False), id="attention constant-unmerged"),
    pytest.param(("activation slope and bias", True), id="activation slope and bias-merged", marks=pytest.mark.slow),
]


@pytest.fixture(params=CASES)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> nn.Module:
    """Return a pruned ViT from its folder."""
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
@pytest.mark.parametrize("model", CASES[:1], indirect=True)
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
@pytest.mark.parametrize("model", CASES[:1], indirect=True)
def test_torch_compile(model: nn.Module) -> None:
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tiny_images(seed=2)), model(tiny_images(seed=2)), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_folder_becomes_what_servers_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_llama(vocab_size=512).eval()
    plan = plan_depth(model, remove={"attention": 1}, batches=[torch.ones(2, 4, dtype=torch.long)])
    apply_plan(model, plan)
    save_pruned(model, plan, tmp_path / "pruned")
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    pruned, served = ["export", str(tmp_path / "pruned"), "--output"], ["--format", "nemotron-nas"]
    tokenizer = ["--tokenizer", str(tmp_path / "tokenizer")]
    assert main([*pruned, str(tmp_path / "served"), *served]) == 2
    assert "Expected tokenizer for served, but got None. Pass" in capsys.readouterr().err
    assert main([*pruned, str(tmp_path / "served"), *served, *tokenizer]) == 0
    config = json.loads((tmp_path / "served" / "config.json").read_text())
    assert sum(block["attention"]["no_op"] for block in config["block_configs"]) == 1
    gguf = pytest.importorskip("gguf")
    assert main([*pruned, str(tmp_path / "model.gguf"), "--format", "gguf-q8_0", *tokenizer]) == 0
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert kinds["output.weight"] == "Q8_0"
