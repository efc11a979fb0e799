"""A folder holds the whole network of each task: the pruned part, and the neck and head around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.detection.networks import tiny_detr, tiny_ssd
from cases.models.language import llama_folder
from cases.models.tiny import stir, tiny_images, tiny_inputs, tiny_timm
from cases.tiny_plans import tiny_plan
from torch import Tensor, nn

from prunerecover import Budget, Plan, apply_plan, load_pruned, merge, plan_width, save_pruned
from prunerecover.model.paths import get_module
from prunerecover.recipes.tasks.causal_lm import CausalLM
from prunerecover.recipes.tasks.image_classifier import ImageClassifier
from prunerecover.recipes.tasks.object_detector import ObjectDetector
from prunerecover.recipes.tasks.segmenter import ImageSegmenter

VIT = {"patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}


AFFINE = (1, "attention", "affine")


def pixels() -> Tensor:
    return torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(2))


def classifier(_: Path | None = None) -> ImageClassifier:
    return ImageClassifier("vit_tiny_patch16_224", num_classes=5, model_kwargs={**VIT, "img_size": 16})


def segmenter(_: Path) -> ImageSegmenter:
    return ImageSegmenter(3, image_size=16, model_kwargs=VIT)


def segformer(_: Path) -> ImageSegmenter:
    sizes = {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "decoder_hidden_size": 8}
    return ImageSegmenter(3, "segformer", model_kwargs={**sizes, "num_attention_heads": [1, 1, 2, 2]})


def language_model(scratch: Path) -> CausalLM:
    return CausalLM(str(llama_folder(scratch / "llama")), pretrained=False)


@dataclass(frozen=True)
class Task:
    """Builder of a task, and the part to prune.

    Attributes:
        module: Builder of the LightningModule before pruning, from a folder if needed.
        network: Path of the network for the folder.
        batch: Inputs of the network.
        builds_itself: Whether the folder opens without the dense network.
        target: Path in the network of the part to prune.
    """

    module: Callable[[Path], pl.LightningModule]
    network: str
    batch: Callable[[], Any]
    builds_itself: bool
    target: str = ""

    def dense(self, scratch: Path) -> nn.Module:
        """Return the network before pruning, with weights of its own."""
        network = get_module(self.module(scratch), self.network)
        stir(network, seed=3, scale=1.1)
        return network.eval()


TASKS = {
    "classification": Task(classifier, "model", tiny_images, builds_itself=True),
    "segmentation": Task(segmenter, "network", tiny_images, builds_itself=False),
    "segmentation around a backbone": Task(segmenter, "network", tiny_images, builds_itself=False, target="backbone"),
    "segmentation of transformers": Task(segformer, "network", pixels, builds_itself=True),
    "detection": Task(lambda _: ObjectDetector(tiny_ssd()), "network", pixels, builds_itself=False),
    "detection of transformers": Task(
        lambda _: ObjectDetector(tiny_detr(), image_size=64), "network", pixels, builds_itself=False
    ),
    "language": Task(language_model, "model", lambda: tiny_inputs("text"), builds_itself=True),
}


def squares(model: nn.Module, batch: Any) -> Tensor:
    return computed(model, batch).square().mean()


def computed(network: nn.Module, batch: Any) -> Tensor:
    output = network(**batch) if isinstance(batch, dict) else network(batch)
    return output["logits"] if isinstance(output, dict) else output


def pruned(task: Task, scratch: Path) -> tuple[nn.Module, Plan]:
    """Return the network of a task after surgery and merging, and all edits."""
    network = task.dense(scratch)
    part = get_module(network, task.target)
    if task.target or task.network == "model":
        plan = tiny_plan(part, AFFINE)
    else:
        plan = plan_width(part, Budget(macs=0.1), batches=[task.batch()], loss=squares)
    apply_plan(part, plan)
    return network, plan + merge(part)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_the_network_of_a_task_comes_back_from_its_folder(name: str, tmp_path: Path) -> None:
    task = TASKS[name]
    network, plan = pruned(task, tmp_path)
    folder = save_pruned(network, plan, tmp_path / "pruned", task.target)
    assert {"plan.json", "model.safetensors"} <= {file.name for file in folder.iterdir()}
    with torch.no_grad():
        expected = computed(network, task.batch())
        for model in (task.dense(tmp_path), *[None] * task.builds_itself):
            loaded = load_pruned(folder, model)
            assert type(loaded) is type(network)
            assert not loaded.training
            assert torch.equal(computed(loaded, task.batch()), expected)


def test_a_lightning_module_may_be_the_whole(tmp_path: Path) -> None:
    module = classifier().eval()
    plan = tiny_plan(module.model, AFFINE)
    apply_plan(module.model, plan)
    save_pruned(module, plan, tmp_path / "pruned", "model")
    dense = classifier()
    assert load_pruned(tmp_path / "pruned", dense) is dense
    assert torch.equal(dense(tiny_images()), module(tiny_images()))


@pytest.fixture(scope="module")
def around_a_backbone(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Plan]:
    """Return a segmenter with a pruned backbone, and all edits."""
    return pruned(TASKS["segmentation around a backbone"], tmp_path_factory.mktemp("dense"))


@pytest.fixture
def folder(around_a_backbone: tuple[nn.Module, Plan], tmp_path: Path) -> Path:
    return save_pruned(*around_a_backbone, tmp_path / "pruned", "backbone")


def test_the_model_around_the_pruned_network_must_be_given(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"dense model around the network at 'backbone', .* load_pruned\(path, model"):
        load_pruned(folder)
    with pytest.raises(ValueError, match="Expected a module at 'backbone', but the model .* has no 'backbone'"):
        load_pruned(folder, tiny_timm())


def test_weights_of_another_head_leave_the_model_as_it_was(folder: Path) -> None:
    other = ImageSegmenter(4, image_size=16, model_kwargs=VIT).network.eval()
    before = other(tiny_images())
    with pytest.raises(ValueError, match="of the LinearSegmenter that the plan leaves .* has other shapes head"):
        load_pruned(folder, other)
    assert torch.equal(other(tiny_images()), before)


def test_a_path_at_which_nothing_is(around_a_backbone: tuple[nn.Module, Plan], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected a module at 'encoder', but the model .* has no 'encoder'"):
        save_pruned(*around_a_backbone, tmp_path / "pruned", "encoder")
    with pytest.raises(ValueError, match="Expected the model that the plan leaves .* but got another LinearSegmenter"):
        save_pruned(*around_a_backbone, tmp_path / "pruned")
    assert not list(tmp_path.iterdir())
