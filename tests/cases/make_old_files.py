"""Script for the files in tests/checkpoint/old_files: each kind that prunerecover writes, and models' outputs.

The files were made with version 0.1.0, before the code was restructured, and are kept so that tests can show that such
files still open and give the same numbers. Do not make them again to let a test pass.

    OMP_NUM_THREADS=1 PYTHONPATH=tests python tests/cases/make_old_files.py NEW_FOLDER

Everything is seeded; only measured times and memory (report, trials, events) differ between runs.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from cases import old_files as cases
from safetensors.torch import save_file
from torch import Tensor, nn

from prunerecover import Budget, Plan, apply_plan, compare, merge, plan_depth, plan_width, save_pruned

Rows = list[tuple[Tensor, Tensor]]


def stirred(name: str, images: Tensor) -> nn.Module:
    """Return a seeded network with branches of visible effect, and BatchNorm statistics of the inputs."""
    torch.manual_seed(0)
    model, generator = cases.NETWORKS[name](), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(6.0) if p.ndim > 1 else p.add_(0.1 * torch.randn(p.shape, generator=generator))
        if name == "cnn":
            model.train()(images)
    return model.eval()


def make_depth(model: nn.Module, rows: Rows, folder: Path) -> Plan:
    """An attention and two activations go; the same merged, as a file and as a folder."""
    plan = plan_depth(model, remove={"attention": 1, "activation": 2}, batches=rows)
    plan.save(folder / "depth.json")
    apply_plan(model, plan)
    merged = plan + merge(model)
    merged.save(folder / "depth_merged.json")
    save_pruned(model, merged, folder / "depth_merged")
    return merged


def make_width(vit: nn.Module, cnn: nn.Module, rows: Rows, folder: Path) -> None:
    """Heads and neurons by tolerance; channels, also as a folder."""
    plan_width(vit, Budget(params=0.2), batches=rows, allocation="fair_pruner").save(folder / "heads.json")
    plan = plan_width(cnn, Budget(macs=0.4), batches=rows)
    plan.save(folder / "channels.json")
    apply_plan(cnn, plan)
    save_pruned(cnn, plan, folder / "channels")


def make_text(llama: nn.Module, mixture: nn.Module, tokens: Tensor, folder: Path) -> None:
    """Write a model without a block and a model without some experts; both stay standard, and have a config."""
    rows = [{"input_ids": part, "labels": part} for part in tokens.split(8)]
    plans = {
        "block": (llama, plan_depth(llama, remove={"block": 1}, batches=rows)),
        "experts": (mixture, plan_width(mixture, Budget(ratio={"expert": 0.25}), batches=rows, allocation="uniform")),
    }
    for name, (model, plan) in plans.items():
        apply_plan(model, plan)
        save_pruned(model, plan, folder / name)


def make_search(model: nn.Module, folder: Path) -> None:
    """Write a plan of short trials, and the file of the trials."""
    with tempfile.TemporaryDirectory() as place:
        cases.search(model, Path(place))
        for ending in ("json", "safetensors", "trials.jsonl"):
            shutil.copy(Path(place) / f"boundary.{ending}", folder)


def make_checkpoints(network: str, images: Tensor, folder: Path) -> Tensor:
    """Write a checkpoint of a half-done fit, and for the ViT also final weights alone; return the final logits."""
    with tempfile.TemporaryDirectory() as place:
        files = Path(place)
        module, trainer = cases.fit(network, images, files)
        copy(files / "epoch=1.ckpt", folder / f"{network}.ckpt")
        if network == "vit":
            trainer.save_checkpoint(files / "weights.ckpt", weights_only=True)
            copy(files / "weights.ckpt", folder / "vit_weights_only.ckpt")
            shutil.copy(next(files.glob("teacher-*")), folder)
    return cases.logits(module, network, {"images": images})


def copy(path: Path, target: Path) -> None:
    """Copy a checkpoint, without the name of the original folder."""
    checkpoint = torch.load(path, weights_only=True)
    for key in {"callbacks", "prunerecover"} & checkpoint.keys():
        checkpoint[key] = without(str(path.parent.resolve()), checkpoint[key])
    torch.save(checkpoint, target)


def without(place: str, data: Any) -> Any:
    """Return plain data with "run" for the name of a folder in all words."""
    if isinstance(data, str):
        return data.replace(place, "run")
    if isinstance(data, dict):
        return {without(place, key): without(place, value) for key, value in data.items()}
    return type(data)(without(place, value) for value in data) if isinstance(data, list | tuple) else data


def main(folder: Path) -> None:
    """Make everything in a new folder."""
    torch.set_num_threads(1)
    folder.mkdir()
    images = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    tokens = torch.randint(3, 13, (8, 4), generator=torch.Generator().manual_seed(2))
    rows = list(zip(images.split(8), (torch.arange(16) % 10).split(8), strict=True))
    vit, cnn, llama, mixture = (stirred(name, images) for name in ("vit", "cnn", "llama", "mixture"))
    save_pruned(vit, Plan(), folder / "dense_vit")
    save_pruned(cnn, Plan(), folder / "dense_cnn")
    make_search(vit, folder)
    make_width(vit, cnn, rows, folder)
    make_text(llama, mixture, tokens, folder)
    plan = make_depth(vit, rows, folder)
    before = cases.dense("vit", folder)
    report = compare(before, vit, images, batches=rows, metric=["top1", "top5"], plan=plan, pairs=3, details={"old": 1})
    report.save(folder)
    (folder / "report.md").unlink()
    removed = {name: Plan.load(folder / name).removed for name in cases.PLAN_FILES}
    (folder / "removed.json").write_text(json.dumps(removed, indent=2) + "\n")
    expected = {"images": images, "tokens": tokens}
    for network in ("vit", "cnn"):
        expected[f"logits of {network}.ckpt resumed"] = make_checkpoints(network, images, folder)
    for name in (*cases.PLANS, *cases.FOLDERS, *cases.CHECKPOINTS):
        expected[f"logits of {name}"] = cases.logits(cases.opened(name, folder), name, expected)
    save_file(expected, folder / "expected.safetensors", cases.rounding())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
