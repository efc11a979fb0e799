"""Files to break: plans, pruned folders and checkpoints of tiny networks, and how each is opened."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import lightning.pytorch as pl
import timm
import torch
from torch import Tensor, nn

from benchmarks.end_to_end import mutations
from prunerecover import Budget, apply_plan, load_pruned, merge, plan_depth, plan_width, save_pruned
from prunerecover.callbacks.ledger.ledger import Ledger

SHAPE = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 8, "num_heads": 2, "depth": 3, "num_classes": 4}
IMAGES = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def vit() -> nn.Module:
    """A tiny vision transformer, always the same."""
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", **SHAPE).eval()


def cnn() -> nn.Module:
    """A tiny convolutional network."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 4)).eval()


class Module(pl.LightningModule):
    """A user's module around the transformer."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net, self.beside = vit(), nn.Linear(4, width)


@dataclass(frozen=True)
class Subject:
    """Files that are broken, and how they are opened.

    Attributes:
        name: For the table.
        opened: Opens what lies in a folder, given a dense network or not; returns the pruned one.
        dense: Makes the dense network that is passed; None: none is.
        mutations: Each breaks what lies in a folder.
        files: Where they lie unbroken.
    """

    name: str
    opened: Callable[[Path, nn.Module | None], nn.Module]
    dense: Callable[[], nn.Module] | None
    mutations: tuple[Callable[[Path, Random], str], ...]
    files: Path


def make_subjects(folder: Path) -> list[Subject]:
    """Write the unbroken files."""
    rows = [IMAGES]
    deep = plan_depth(vit(), remove={"attention": 1, "activation": 1, "block": 1}, batches=rows)
    heads, wide = (plan_width(make(), Budget(macs=0.3), batches=rows, loss=_loss) for make in (vit, cnn))
    subjects = []
    in_plan = (_bytes("plan.json"), _json, _json, _json)
    for name, dense, plan in (("depth", vit, deep), ("heads", vit, heads), ("channels", cnn, wide)):
        plan.save(folder / name / "plan.json")
        fitted = (_bytes("plan.safetensors"), _tensors("plan.safetensors")) if plan.tensors else ()
        subjects.append(Subject(f"plan of {name}", _apply, dense, (*in_plan, *fitted, _swapped), folder / name))
    model = vit()
    apply_plan(model, deep)
    save_pruned(model, deep + merge(model), folder / "folder")
    weights = (_bytes("model.safetensors"), _tensors("model.safetensors"), _swapped)
    for how, passed in (("alone", None), ("with the dense network", vit)):
        files = folder / "folder"
        subjects.append(Subject(f"folder, {how}", _load("."), passed, (*in_plan, *weights), files))
    module = Module()
    Ledger.of(module).apply(module, "net", deep)
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", enable_progress_bar=False)
    trainer.strategy.connect(module)
    trainer.save_checkpoint(folder / "checkpoint" / "last.ckpt")
    broken = (_bytes("last.ckpt"), _checkpoint, _checkpoint)
    for how, passed in (("alone", None), ("with the dense network", vit)):
        subjects.append(Subject(f"checkpoint, {how}", _load("last.ckpt"), passed, broken, folder / "checkpoint"))
    subjects.append(Subject("checkpoint, with the class", _load_class, None, broken, folder / "checkpoint"))
    return subjects


def _loss(network: nn.Module, images: Tensor) -> Tensor:
    return network(images).square().mean()


def _bytes(name: str) -> Callable[[Path, Random], str]:
    return lambda folder, draw: mutations.mutate_bytes(folder / name, draw)


def _tensors(name: str) -> Callable[[Path, Random], str]:
    return lambda folder, draw: mutations.mutate_tensors(folder / name, draw)


def _json(folder: Path, draw: Random) -> str:
    return mutations.mutate_json(folder / "plan.json", draw)


def _checkpoint(folder: Path, draw: Random) -> str:
    return mutations.mutate_checkpoint(folder / "last.ckpt", draw)


def _swapped(folder: Path, draw: Random) -> str:
    """Put the file of another plan in the place of one of these."""
    name = draw.choice([path.name for path in folder.iterdir()])
    others = [p for p in (folder.parent / "whole").glob("*/*") if p.suffix == Path(name).suffix]
    other = draw.choice(sorted(others))
    shutil.copy(other, folder / name)
    return f"{name} is {other.parent.name}/{other.name}"


def _apply(folder: Path, model: nn.Module | None) -> nn.Module:
    assert model is not None
    apply_plan(model, folder / "plan.json")
    return model


def _load(name: str) -> Callable[[Path, nn.Module | None], nn.Module]:
    return lambda folder, model: load_pruned(folder / name, model)


def _load_class(folder: Path, model: nn.Module | None) -> nn.Module:
    loaded = load_pruned(folder / "last.ckpt", Module)
    assert isinstance(loaded, Module)
    return loaded.net
