"""The plain commands `report` and `export`: they read what a run has written and need no trainer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from prunerecover.plan.plan import Plan

OTHER_FILES = {".pt", ".pt2", ".pth", ".bin", ".ckpt", ".safetensors"}


def show_report(path: str) -> None:
    """Print a saved report as Markdown, rendered for the terminal.

    Args:
        path: A `report.json`, or the folder that holds one.

    Raises:
        ValueError: If there is no such file, or it is no report.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from prunerecover.report.report import Report

    if not Path(path).exists():
        raise ValueError(f"Expected a report at {path}, but there is none. `prunerecover quickstart` writes one.")
    Console().print(Markdown(Report.load(path).to_markdown()))


def export(path: str, output: str, merge: bool = True, batch_size: int = 1) -> None:
    """Write a pruned model as ONNX or as a folder that `load_pruned` opens.

    Args:
        path: A Lightning `.ckpt` or a `save_pruned` folder.
        output: A file ending in `.onnx`, or a folder.
        merge: Fold together what pruning left mergeable, first.
        batch_size: Of the example input; the exported batch dimension is dynamic.

    Raises:
        FileNotFoundError: If there is nothing at `path`.
        ValueError: If the output is a file of another format.
    """
    from prunerecover import load_pruned, save_pruned
    from prunerecover import merge as merge_model
    from prunerecover.files.atomic import atomic_file
    from prunerecover.recipes.networks import cifar_resnet  # noqa: F401  # its names are timm's from now on

    target = Path(output)
    if target.suffix in OTHER_FILES:
        raise ValueError(
            f"Expected an output that ends in .onnx, or a folder, but got '{output}'. The weights in the folder are "
            "model.safetensors; `torch.export` takes what load_pruned returns."
        )
    model = load_pruned(path)
    plan = stored_plan(Path(path))
    if merge:
        plan = plan + merge_model(model)
    if target.suffix == ".onnx":
        with atomic_file(target) as unfinished:
            export_onnx(model, unfinished, batch_size)
    else:
        save_pruned(model, plan, target)
    print(f"Wrote {target}")


def stored_plan(path: Path) -> Plan:
    """Return the plan of the one network in a checkpoint or folder that `load_pruned` opens."""
    from prunerecover.checkpoint.distributed_folder import is_distributed
    from prunerecover.checkpoint.lightning_file import read_checkpoint
    from prunerecover.plan.plan import Plan

    if path.is_dir() and not is_distributed(path):
        return Plan.load(path / "plan.json")
    (plan,) = read_checkpoint(path).networks.values()
    return plan


def export_onnx(model: nn.Module, path: Path, batch_size: int = 1) -> None:
    """Write an image model as ONNX with a dynamic batch dimension.

    Args:
        model: One that knows its input size; see `image_shape`.
        path: File to write, in a folder that exists.
        batch_size: Of the example input.
    """
    images = torch.zeros(batch_size, *image_shape(model))
    torch.onnx.export(
        model,
        (images,),
        str(path),
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        input_names=["images"],
        external_data=False,
    )


def image_shape(model: Any) -> tuple[int, int, int]:
    """Return `(C, H, W)` of the images that a timm model takes.

    Raises:
        ValueError: If the model does not say.
    """
    patches = getattr(model, "patch_embed", None)
    if patches is not None and getattr(patches, "img_size", None):
        return (int(patches.proj.in_channels), *map(int, patches.img_size))  # type: ignore[return-value]
    size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size")
    if size is None:
        raise ValueError(
            f"Expected an image model that knows its input size, but {type(model).__name__} does not. "
            "Load it with load_pruned and call torch.onnx.export with your own example input."
        )
    return tuple(size)
