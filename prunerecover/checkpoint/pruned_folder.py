"""Save a pruned model as a folder, and load it again from there or from a Lightning checkpoint.

A folder holds plan.json (with its sidecar, if the plan has fitted tensors) and model.safetensors. A transformers model
that is still a standard one (whole blocks removed, all layers narrowed alike, nothing left in the place of anything)
also gets config.json, so that `from_pretrained` opens the folder; any other does not, because `from_pretrained` would
fill what it does not know with random values. Loading here never does: structure is replayed from the plan, and every
weight must fit.
"""

from __future__ import annotations

import copy
import shutil
import uuid
from pathlib import Path
from typing import Any

from torch import nn

from prunerecover.checkpoint.lightning_file import LightningFile, before_loading, read_checkpoint
from prunerecover.checkpoint.weights_file import Weights, check_fit, fill, read_weights, save_weights
from prunerecover.families.constructors import build, constructor_of
from prunerecover.model.hashing import tensors_hash
from prunerecover.model.paths import get_module, unwrap
from prunerecover.model.settings import data_hash
from prunerecover.plan.plan import Plan
from prunerecover.recovery.lora import Adapters, has_adapters, inject_adapters, merge_adapters
from prunerecover.surgery.apply_edits import apply_and_check, check_source, undo
from prunerecover.surgery.provenance import source_of

PLAN, SIDECAR, WEIGHTS = "plan.json", "plan.safetensors", "model.safetensors"
CONFIG, GENERATION = "config.json", "generation_config.json"
OURS = {PLAN, SIDECAR, WEIGHTS, CONFIG, GENERATION}


def save_pruned(model: nn.Module, plan: Plan, path: str | Path) -> Path:
    """Write a folder from which `load_pruned` makes the same model again, in any process.

    Args:
        model: The network after the plan was applied, wrapped or not, on any device; it is not changed.
        plan: All its edits, `plan + merge(model)` if it was merged; `Plan()` for a dense model.
        path: The folder. It appears complete or not at all; one of ours that is there already is replaced.

    Returns:
        The folder's path.

    Raises:
        ValueError: If the model is not the one that the plan leaves, or has no values.
        FileExistsError: If something that we did not write is at `path`.
    """
    model, path = unwrap(model), Path(path)
    plan = _checked(model, plan)
    _check_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished, former = (path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}.{word}" for word in ("new", "old"))
    unfinished.mkdir()
    try:
        plan.save(unfinished / PLAN)
        save_weights(model, unfinished / WEIGHTS)
        _save_config(model, unfinished)
        if path.exists():
            path.rename(former)
        unfinished.rename(path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        if former.exists():
            former.rename(path)
        raise
    shutil.rmtree(former, ignore_errors=True)
    return path


def load_pruned(path: str | Path, model: nn.Module | type[nn.Module] | None = None) -> nn.Module:
    """Make a pruned model again, with the weights in the dtype of the file; adapters in it are merged.

    Args:
        path: A folder of `save_pruned`, or a checkpoint that a Trainer with one of our callbacks saved.
        model: None: the dense model is rebuilt from the plan (timm, transformers). A dense network: it is pruned in
            place and gets the weights, on its device. A LightningModule class, for checkpoints: it is built as
            `load_from_checkpoint` builds it, from the file's hyperparameters, and pruned just before its weights load.

    Returns:
        The network in evaluation mode; for a class the LightningModule, in the mode in which Lightning leaves it.

    Raises:
        FileNotFoundError: If there is no such file or folder, or the folder lacks a file.
        ValueError: If it cannot be read, is of a run without pruning or of a newer version, cannot be rebuilt, or if
            its weights are not for the structure that its plan leaves. A model that was passed stays as it was.
        TypeError: If `model` cannot take what `path` holds.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"Expected a folder of save_pruned or a Lightning checkpoint, but {path} does not exist."
        )
    if isinstance(model, type):
        _check_class(model, path)
        return _load_module(model, read_checkpoint(path))
    plan, weights, adapters = _read_folder(path) if path.is_dir() else _only_network(read_checkpoint(path))
    _check_network(model, plan)
    network = _dense(plan, path) if model is None else unwrap(model)
    _prune_and_fill(network, plan, weights, path, adapters)
    if adapters is not None:
        merge_adapters(network, adapters)
    return network.eval()


def _checked(model: nn.Module, plan: Plan) -> Plan:
    """Return the plan to write; for a dense model without one, a plan that says how to build it."""
    if not plan.edits and not plan.source.tensors:
        return plan.model_copy(update={"source": source_of(model)})
    found, expected = tensors_hash(model), _end_of(plan)
    if found != expected:
        hint = "Was it merged after the plan was made? Pass plan + merge(model)."
        if found == plan.source.tensors:
            hint = "It is still dense: apply_plan(model, plan) first."
        raise ValueError(
            f"Expected the model that the plan leaves ({expected[:12]}), but got another {type(model).__name__} "
            f"({found[:12]}). {hint}"
        )
    return plan


def _end_of(plan: Plan) -> str:
    return plan.result.tensors if plan.edits else plan.source.tensors


def _check_free(path: Path) -> None:
    if not path.exists():
        return
    held = {entry.name for entry in path.iterdir()} if path.is_dir() else {path.name}
    if held and not (held <= OURS and PLAN in held):
        foreign = ", ".join(sorted(held - OURS)[:3]) or f"no {PLAN}"
        raise FileExistsError(
            f"Expected nothing at {path}, or a folder that is empty or of save_pruned, but got {foreign} there. "
            "Nothing was written; give another path."
        )


def _save_config(model: Any, folder: Path) -> None:
    """Make the folder one that `from_pretrained` opens, if the model is still a standard one of transformers."""
    constructor = constructor_of(model)
    if constructor is None or "transformers" not in constructor:
        return
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.dtype = str(model.dtype).removeprefix("torch.")
    config.to_json_file(folder / CONFIG)
    if model.can_generate() and model.generation_config is not None:
        model.generation_config.to_json_file(folder / GENERATION)


def _check_class(cls: type, path: Path) -> None:
    if not hasattr(cls, "load_from_checkpoint"):
        raise TypeError(f"Expected a LightningModule class, a network or None, but got the class {cls.__name__}.")
    if path.is_dir():
        raise TypeError(
            f"Expected a Lightning checkpoint for the class {cls.__name__}, but {path} is a folder, which holds only "
            "the network. Call load_pruned(path), and put what it returns into your LightningModule."
        )


def _check_network(model: object, plan: Plan) -> None:
    if model is None:
        return
    if not isinstance(model, nn.Module):
        raise TypeError(f"Expected a LightningModule class, a network or None, but got {type(model).__name__}.")
    if hasattr(model, "load_from_checkpoint") and tensors_hash(unwrap(model)) != plan.source.tensors:
        raise TypeError(
            f"Expected the class {type(model).__name__} or the network inside it, but got a LightningModule instance. "
            f"Pass {type(model).__name__} itself, or the network."
        )


def _read_folder(path: Path) -> tuple[Plan, Weights, None]:
    if not (path / PLAN).is_file():
        hint = (
            "It is one of transformers: use from_pretrained." if (path / CONFIG).is_file() else "Is it the right one?"
        )
        raise FileNotFoundError(f"Expected a folder of save_pruned, but {path} has no {PLAN}. {hint}")
    return Plan.load(path / PLAN), read_weights(path / WEIGHTS), None


def _only_network(file: LightningFile) -> tuple[Plan, Weights, Adapters | None]:
    if len(file.networks) != 1:
        held = ", ".join(map(repr, file.networks)) or "it was saved before the first surgery"
        raise ValueError(
            f"Expected a checkpoint with one pruned network, but {file.path} has {len(file.networks)} ({held}). "
            "Pass the LightningModule class: load_pruned(path, MyModule)."
        )
    ((target, plan),) = file.networks.items()
    return plan, Weights(file.weights_of(target)), file.adapters.get(target)


def _dense(plan: Plan, path: Path) -> nn.Module:
    """Rebuild the model that the plan starts from, with parameters on the meta device."""
    source = plan.source
    if source.constructor is None:
        raise ValueError(
            f"Expected a plan that says how to build its dense model, but that of {path} does not "
            f"({source.class_ or 'unknown class'}). Build the dense model and pass it: load_pruned(path, model)."
        )
    if source.constructed not in (None, data_hash(source.constructor)):
        raise ValueError(
            f"Expected the constructor that the plan was made with, but that of {path} is another. Was the file "
            "edited? Copy it again, or build the dense model and pass it: load_pruned(path, model)."
        )
    model = build(source.constructor)
    if tensors_hash(model) != source.tensors:
        raise ValueError(
            f"Expected the {source.class_} that the plan of {path} starts from, but the installed version builds "
            "another. Install the timm or transformers that it was made with, or pass the dense model."
        )
    return model


def _prune_and_fill(
    network: nn.Module, plan: Plan, weights: Weights, path: Path, adapters: Adapters | None = None
) -> None:
    """Replay the plan's structure on a dense network and load the weights; after an error it is as it was.

    Adapters are injected, and hold their weights afterwards.
    """
    check_source(network, plan)
    applied = apply_and_check(network, plan, None, f" in {path}")
    try:
        if adapters is not None:
            inject_adapters(network, adapters)
        check_fit(network, weights.tensors, str(path))
    except ValueError:
        if adapters is not None and has_adapters(network):
            merge_adapters(network, adapters, structure_only=True)
        undo(network, applied.journal)
        raise
    fill(network, weights)


def _load_module(cls: Any, file: LightningFile) -> nn.Module:
    """Build a LightningModule as Lightning does, with the networks pruned just before their weights are loaded."""
    replayed: list[nn.Module] = []

    def replay(module: nn.Module) -> None:
        for target, plan in file.networks.items():
            network, adapters = unwrap(get_module(module, target)), file.adapters.get(target)
            _prune_and_fill(network, plan, Weights(file.weights_of(target)), file.path, adapters)
        replayed.append(module)

    with before_loading(cls, file, replay):
        module: nn.Module = cls.load_from_checkpoint(file.path, map_location="cpu", weights_only=True)
    if file.networks and module not in replayed:
        raise ValueError(
            f"Expected {cls.__name__} to load the weights of {', '.join(file.networks)} that are in {file.path}, but "
            "it loaded others. Build the network yourself, and pass it: load_pruned(path, network)."
        )
    for target, adapters in file.adapters.items():
        merge_adapters(get_module(module, target), adapters)
    return module
