"""Command `export`, without a trainer: a pruned model in a format of another runtime, or a folder for `load_pruned`.

The export computes the output of the LightningModule. A checkpoint without further weights exports the pruned network;
a checkpoint with further weights (a segmenter's decoder on a pruned backbone) exports the smallest module with all
weights, and needs the LightningModule's class.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prunerecover.checkpoint.lightning_file import LightningFile, canonical, is_checkpoint, read_checkpoint
from prunerecover.checkpoint.pruned_folder import PLAN, load_network, load_pruned, save_pruned
from prunerecover.files.plan_file import read_data, read_saved
from prunerecover.model.paths import get_module, is_within, unwrap
from prunerecover.plan.plan import Plan
from prunerecover.recipes.data.language.tokenizers import open_tokenizer
from prunerecover.recipes.networks import cifar_resnet  # noqa: F401  # its names are timm's from now on
from prunerecover.recipes.networks.detectors.detector import Detector
from prunerecover.runtimes.export import ENDINGS, Format, format_of
from prunerecover.runtimes.export import export as write_network
from prunerecover.surgery.merging import merge

OTHER_FILES = {".pt", ".pth", ".bin", ".ckpt", ".safetensors"}
TOKENS = 8  # length of an example; texts of any length are valid
OWN_CLASSES = "prunerecover.recipes."  # prefix of classes that a file may name for import


@dataclass(frozen=True)
class Exported:
    """A network to write.

    Attributes:
        network: Network in evaluation mode.
        plan: All edits of the only pruned network inside; None for several.
        example: Shape of an input without the batch, `(C, H, W)`; None if unknown.
        target: Path of the pruned network inside; empty for the network itself.
    """

    network: nn.Module
    plan: Plan | None
    example: tuple[int, ...] | None
    target: str = ""


def export(
    path: str,
    output: str,
    merged: bool = True,
    batch_size: int = 2,
    model: str | None = None,
    target: str | None = None,
    input_size: Sequence[int] | None = None,
    dynamic: bool = True,
    format: str | None = None,
    tokenizer: str | None = None,
) -> None:
    """Write a pruned model in a format of another runtime, or as a folder for `load_pruned`.

    Args:
        path: Lightning `.ckpt` or `save_pruned` folder.
        output: File with one of `ENDINGS`, or a folder.
        merged: Whether to merge the linears made mergeable by pruning first.
        batch_size: Batch size of the example input.
        model: Class path of the LightningModule (for a checkpoint), or of a callable without arguments that builds the
            dense network.
        target: Path of the module to export in the LightningModule; None: the smallest module with all weights of the
            checkpoint.
        input_size: Shape of an input, such as `(3, 224, 224)`, or the length of a text; None: the network's.
        dynamic: Whether batches and texts may differ in size from the example input.
        format: Name of the format, see `FORMATS`; None: the ending of the output tells.
        tokenizer: Folder or name of the tokenizer, for the formats of servers.

    Raises:
        FileNotFoundError: If `path` does not exist.
        ValueError: If the output is a file of another format, or the network cannot be built or written in the format.
    """
    folder = Path(output)
    if folder.suffix in OTHER_FILES:
        raise ValueError(
            f"Expected an output that ends in one of {', '.join(ENDINGS)}, or a folder, but got '{output}'. A folder's "
            "weights are in model.safetensors."
        )
    wanted = format_of(folder, format) if format or folder.suffix in ENDINGS else None
    exported = open_for_export(Path(path), model, target, merged)
    if wanted is not None:
        needed = _needed(wanted, exported, batch_size, input_size, tokenizer)
        write_network(exported.network, folder, dynamic=dynamic, format=format, **needed)
    elif exported.plan is None:
        raise ValueError(
            f"Expected an output that ends in one of {', '.join(ENDINGS)} for {type(exported.network).__name__}, but "
            f"got '{output}': a folder holds one pruned network, with the modules around it. Write a file, or name a "
            "network with --target."
        )
    else:
        save_pruned(exported.network, exported.plan, folder, exported.target)
    print(f"Wrote {output}")


def open_for_export(path: Path, model: str | None = None, target: str | None = None, merged: bool = True) -> Exported:
    """Return the network in a checkpoint or a folder, as its module calls it.

    Args:
        path: Lightning `.ckpt` or `save_pruned` folder.
        model: Class path; see `export`.
        target: Path of the module to export; see `export`.
        merged: Whether to merge first; see `export`.

    Raises:
        FileNotFoundError: If `path` does not exist.
        ValueError: If a class is needed but not given, or does not exist.
    """
    cls = None if model is None else named_class(model)
    if not is_checkpoint(path):
        network = load_pruned(path, None if cls is None else built(cls))
        plan, held = Plan.load(path / PLAN), read_saved(read_data(path / PLAN)).target
        return _part_of(network, "", {held: plan}, merged)
    file = read_checkpoint(path)
    wanted = held_together(file) if target is None else target
    if cls is None and file.networks and (wanted not in file.networks or _only_its_class_builds(file, wanted)):
        cls = _noted_class(file)
    if cls is None or not hasattr(cls, "load_from_checkpoint"):
        network = load_network(file, None if cls is None else built(cls))
        (plan,) = file.networks.values()
        return _part_of(network, "", {"": plan}, merged)
    return _part_of(load_pruned(path, cls).eval(), wanted, file.networks, merged)


def held_together(file: LightningFile) -> str:
    """Return the path of the smallest module around all weights of a checkpoint and a whole pruned network."""
    paths = [canonical(target).split(".") for target in file.networks] or [[""]]
    common = paths[0]
    for other in paths[1:]:
        common = [a for a, b in zip(common, other, strict=False) if a == b]
    while common and any(not name.startswith(f"{'.'.join(common)}.") for name in file.weights):
        common = common[:-1]
    return ".".join(common)


def named_class(name: str) -> Any:
    """Import the class or function at a class path; the recipes' classes also by short name.

    Raises:
        ValueError: If the import fails.
    """
    from prunerecover.recipes.cli.names import ADDRESSABLE

    own = {cls.__name__: cls for cls in ADDRESSABLE}
    if name in own:
        return own[name]
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"Expected --model to be the class path of a LightningModule or a network, such as package.module.Class, "
            f"but got '{name}' ({error}). It is looked for in the working directory, too."
        ) from None


def built(make: Any) -> nn.Module:
    """Build a dense network from its class or function.

    Raises:
        ValueError: If arguments are needed, or the result is no network.
    """
    name = getattr(make, "__qualname__", type(make).__name__)
    try:
        inspect.signature(make).bind()
        network = make()
    except TypeError as error:
        raise ValueError(
            f"Expected --model to name a callable that builds the dense network without arguments, but {name} does not "
            f"({error}). Write a function that passes the arguments, and name the function."
        ) from None
    if not isinstance(network, nn.Module):
        raise ValueError(f"Expected --model to name what builds a network, but {name} gives {type(network).__name__}.")
    return network


def example_of(exported: Exported, batch_size: int, input_size: Sequence[int] | None) -> Any:
    """Return an example input of the network: images, or tokens for a language model.

    Args:
        exported: Network, with the shape of an input if known.
        batch_size: Batch size of the example.
        input_size: Shape of an input; None: the network's.

    Raises:
        ValueError: If neither the user nor the network gives the size.
    """
    if getattr(exported.network, "main_input_name", None) == "input_ids":
        tokens = torch.ones(batch_size, *(input_size or [TOKENS]), dtype=torch.long)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    shape = tuple(input_size or exported.example or image_shape(exported.network))
    return torch.zeros(batch_size, *shape)


def _needed(
    wanted: Format, exported: Exported, batch_size: int, input_size: Sequence[int] | None, tokenizer: str | None
) -> dict[str, Any]:
    """Return the argument that a format cannot do without, by name."""
    if wanted.needs == "example_inputs":
        return {wanted.needs: example_of(exported, batch_size, input_size)}
    return {wanted.needs: None if tokenizer is None else open_tokenizer(None, tokenizer)}


def image_shape(model: Any) -> tuple[int, ...]:
    """Return `(C, H, W)` of the images for a timm model.

    Raises:
        ValueError: If the size is unknown.
    """
    shape = _shape_or_none(model)
    if shape is None:
        raise ValueError(
            f"Expected an image model that knows its input size, but {type(model).__name__} does not. "
            "Pass --input-size, such as --input-size 3 224 224, or load it with load_pruned and call "
            "prunerecover.export(model, path, example_inputs)."
        )
    return shape


def _shape_or_none(model: Any) -> tuple[int, ...] | None:
    if isinstance(model, Detector):
        return model.input_shape
    patches = getattr(model, "patch_embed", None)
    if patches is not None and getattr(patches, "img_size", None):
        return (int(patches.proj.in_channels), *map(int, patches.img_size))
    size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size")
    return None if size is None else tuple(size)


def _part_of(module: Any, wanted: str, networks: Mapping[str, Plan], merged: bool) -> Exported:
    """Return the wanted part of a module, with all pruned networks merged.

    Args:
        module: Network, or module around pruned networks.
        wanted: Path of the part.
        networks: Plan of each pruned network, by path in the module.
        merged: Whether to merge.
    """
    plans = {}
    for target, plan in networks.items():
        plans[target] = plan + merge(get_module(module, target)) if merged else plan
    example = getattr(module, "example_input_array", None)
    shapes = (_shape_or_none(unwrap(get_module(module, target))) for target in plans)
    shape = tuple(example.shape[1:]) if isinstance(example, torch.Tensor) else next(shapes, None)
    held = [target for target in plans if is_within(target, wanted)]
    network = unwrap(get_module(module, wanted))
    if len(held) != 1:
        return Exported(network, None, shape)
    return Exported(network, plans[held[0]], shape, held[0][len(wanted) :].removeprefix("."))


def _only_its_class_builds(file: LightningFile, target: str) -> bool:
    """Whether the file lacks the constructor of the network, but names a class of the recipes."""
    noted = (file.class_path or "").startswith(OWN_CLASSES)
    return noted and file.networks[target].source.constructor is None


def _noted_class(file: LightningFile) -> Any:
    """Return the class noted in the file by LightningCLI, if the class belongs to the recipes."""
    noted = file.class_path or ""
    if noted.startswith(OWN_CLASSES):
        return named_class(noted)
    alone = next(iter(file.networks))
    raise ValueError(
        f"Expected --model with the class path of the LightningModule{f' ({noted})' if noted else ''}: {file.path} "
        f"holds more than the pruned network at '{alone}', such as {', '.join(file.beside(alone)[:3])}. To export "
        f"that network alone, pass --target {alone}."
    )
