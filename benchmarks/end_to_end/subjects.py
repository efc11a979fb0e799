"""Files to break: plans, folders, checkpoints and stores of tiny networks, and how each is opened."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import lightning.pytorch as pl
import timm
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from benchmarks.end_to_end import mutations
from prunerecover import (
    Budget,
    Plan,
    RoutedCausalLM,
    apply_plan,
    load_pruned,
    load_routed,
    merge,
    plan_depth,
    plan_width,
    save_pruned,
    save_routed,
)
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.files.hashes import sha256_of
from prunerecover.routing.plan_set import PlanSet
from prunerecover.routing.router import PrefixRouter
from prunerecover.surgery.merging import block_removals
from prunerecover.surgery.provenance import plan_for

SHAPE = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 8, "num_heads": 2, "depth": 3, "num_classes": 4}
LLAMA = {
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
Mutation = Callable[[Path, Random], str]
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
    """Files to break, and the way to open them.

    Attributes:
        name: Name in the table.
        opened: Function that opens the files of a folder, with a dense network or None, and returns the pruned network.
        dense: Maker of the dense network; None: opened without.
        mutations: Functions that break the files of a folder.
        files: Folder of the intact files.
    """

    name: str
    opened: Callable[[Path, nn.Module | None], nn.Module]
    dense: Callable[[], nn.Module] | None
    mutations: tuple[Mutation, ...]
    files: Path


def in_tensors(name: str) -> tuple[Mutation, Mutation]:
    """Return the mutations of a file of tensors."""
    return _at(name, mutations.mutate_bytes), _at(name, mutations.mutate_tensors)


def make_subjects(folder: Path) -> list[Subject]:
    """Write the unbroken files."""
    rows = [IMAGES]
    deep = plan_depth(vit(), remove={"attention": 1, "activation": 1, "block": 1}, batches=rows)
    heads, wide = (plan_width(make(), Budget(macs=0.3), batches=rows, loss=_loss) for make in (vit, cnn))
    subjects = []
    in_plan = (_at("plan.json", mutations.mutate_bytes), *[_at("plan.json", mutations.mutate_json)] * 3)
    for name, dense, plan in (("depth", vit, deep), ("heads", vit, heads), ("channels", cnn, wide)):
        plan.save(folder / name / "plan.json")
        fitted = in_tensors("plan.safetensors") if plan.tensors else ()
        subjects.append(Subject(f"plan of {name}", _apply, dense, (*in_plan, *fitted, _swapped), folder / name))
    model = vit()
    apply_plan(model, deep)
    save_pruned(model, deep + merge(model), folder / "folder")
    weights = (*in_tensors("model.safetensors"), _swapped)
    for how, passed in (("alone", None), ("with the dense network", vit)):
        files = folder / "folder"
        subjects.append(Subject(f"folder, {how}", _load("."), passed, (*in_plan, *weights), files))
    module = Module()
    Ledger.of(module).apply(module, "net", deep)
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", enable_progress_bar=False)
    trainer.strategy.connect(module)
    trainer.save_checkpoint(folder / "checkpoint" / "last.ckpt")
    broken = (_at("last.ckpt", mutations.mutate_bytes), *[_at("last.ckpt", mutations.mutate_checkpoint)] * 2)
    for how, passed in (("alone", None), ("with the dense network", vit)):
        subjects.append(Subject(f"checkpoint, {how}", _load("last.ckpt"), passed, broken, folder / "checkpoint"))
    subjects.append(Subject("checkpoint, with the class", _load_class, None, broken, folder / "checkpoint"))
    _routed(folder / "routed")
    subjects.append(Subject("routed folder", _open_routed, None, (_any_file,), folder / "routed"))
    _planned(folder / "store")
    subjects.append(Subject("store", _search_again, None, (_any_file,), folder / "store"))
    return subjects


def _routed(folder: Path) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**LLAMA)).eval()
    plans = tuple(plan_for(model, block_removals(model, blocks), method="by hand") for blocks in ((2,), (3,)))
    router = PrefixRouter(LLAMA["hidden_size"], len(plans)).eval()
    save_routed(RoutedCausalLM(model, PlanSet(names=("a", "b"), plans=plans), router), folder, weights=True)


class Prompted(nn.Module):
    """Routed model with the same prompts for every input."""

    def __init__(self, routed: RoutedCausalLM) -> None:
        super().__init__()
        self.routed = routed

    def forward(self, _: Tensor) -> Tensor:
        """Return the logits of the prompts."""
        return self.routed(torch.tensor([[5, 6, 7], [8, 9, 10]]))  # type: ignore[no-any-return]


def _open_routed(folder: Path, _: nn.Module | None) -> nn.Module:
    return Prompted(load_routed(folder))


def _planned(store: Path) -> Plan:
    return plan_depth(vit(), remove={"attention": 1, "activation": 1}, batches=[IMAGES], store=store)


def _search_again(folder: Path, _: nn.Module | None) -> nn.Module:
    """Prune by the plan of a search resumed in a copy of a store."""
    with tempfile.TemporaryDirectory() as name:
        plan = _planned(Path(shutil.copytree(folder, Path(name) / "store")))
    model = vit()
    apply_plan(model, plan)
    return model


def _any_file(folder: Path, draw: Random) -> str:
    """Break a file of a folder; for JSON, perhaps with the right sha256 afterwards."""
    path = draw.choice(sorted(file for file in folder.rglob("*") if file.is_file()))
    if path.suffix != ".json" or draw.random() < 0.3:
        return mutations.mutate_bytes(path, draw)
    data = json.loads(path.read_text())
    said = mutations.mutate_tree(data, draw)
    path.write_text(json.dumps(data))
    routing = folder / "routing.json"
    if path != routing and draw.random() < 0.5:
        record, right = json.loads(routing.read_text()), sha256_of(path)
        record["files"][path.relative_to(folder).as_posix()] = right
        record["sets"] = right if path.name == "plan_set.json" else record["sets"]
        routing.write_text(json.dumps(record))
    return f"{said} in {path.name}"


def _loss(network: nn.Module, images: Tensor) -> Tensor:
    return network(images).square().mean()


def _at(name: str, mutate: Mutation) -> Mutation:
    """Return a mutation of a file in a folder."""
    return lambda folder, draw: mutate(folder / name, draw)


def _swapped(folder: Path, draw: Random) -> str:
    """Replace a file by the file of another plan."""
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
