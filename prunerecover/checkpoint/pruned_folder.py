"""Save a pruned model as a folder, and load it again from there or from a Lightning checkpoint.

A folder holds plan.json (with its sidecar, if the plan has fitted tensors) and model.safetensors. A transformers model
that is still a standard one (whole blocks removed, all layers narrowed alike, nothing left in the place of anything)
also gets its config.json, so that `from_pretrained` opens the folder; any other gets one that makes `from_pretrained`
fail with what to call, for without one it would build a model of full size with random weights. Loading here never
does. A folder may hold more than the network that was pruned: then plan.json says where in it that network is.
"""

from __future__ import annotations

import copy
import json
import os
import warnings
from pathlib import Path
from typing import Any

from torch import nn

from prunerecover.checkpoint.distributed_folder import is_distributed
from prunerecover.checkpoint.lightning_file import LightningFile, read_checkpoint
from prunerecover.checkpoint.lightning_module import load_class, load_instance
from prunerecover.checkpoint.replay import dense_of, end_of, prune_and_fill
from prunerecover.checkpoint.weights_file import Weights, read_weights, save_weights
from prunerecover.families.constructors import build, constructor_of
from prunerecover.families.transformers_layers import is_transformers_model
from prunerecover.files.atomic import atomic_folder, whole_folder, write_text
from prunerecover.files.hashes import sha256_of
from prunerecover.files.plan_file import Saved, read_data, read_saved, write_plan
from prunerecover.files.refused_writes import naming_the_folder
from prunerecover.model.checks import warn_unless_finite
from prunerecover.model.hashing import tensors_hash
from prunerecover.model.paths import get_module, unwrap
from prunerecover.model.settings import use_of
from prunerecover.plan.plan import Plan, check_plan
from prunerecover.recovery.lora import Adapters, merge_adapters
from prunerecover.surgery.provenance import source_of

PLAN, SIDECAR, WEIGHTS = "plan.json", "plan.safetensors", "model.safetensors"
CONFIG, GENERATION = "config.json", "generation_config.json"
FOREIGN = {
    CONFIG: "It is one of transformers: use from_pretrained.",
    "zero_to_fp32.py": "It is one of DeepSpeed: make it one file with convert_zero_checkpoint_to_fp32_state_dict of "
    "lightning.pytorch.utilities.deepspeed, and load that.",
}
NOT_STANDARD = "of no standard architecture: open this folder with prunerecover.load_pruned"
OURS = {PLAN, SIDECAR, WEIGHTS, CONFIG, GENERATION}


def save_pruned(model: nn.Module, plan: Plan, path: str | Path, target: str = "") -> Path:
    """Write a folder from which `load_pruned` makes the same model again, in any process.

    Args:
        model: The network after the plan was applied, wrapped or not, on any device; it is not changed.
        plan: All its edits, `plan + merge(model)` if it was merged; `Plan()` for a dense model.
        path: The folder. It appears complete or not at all; one of ours that is there already is replaced.
        target: Path in the model of the network that was pruned, where the model is more: "backbone" of a segmenter.

    Returns:
        The folder's path.

    Raises:
        ValueError: If the model is not the one that the plan leaves, has no values, or nothing at `target`.
        FileExistsError: If something that we did not write is at `path`.
        OSError: If the folder around it is full or read-only.
    """
    return write_folder(model, plan, path, target=target)


def write_folder(model: nn.Module, plan: Plan, path: str | Path, run: str = "", target: str = "") -> Path:
    """Write a folder as `save_pruned` does, and note in it which run of a Trainer did.

    Args:
        model: As of `save_pruned`.
        plan: As of `save_pruned`.
        path: As of `save_pruned`.
        run: See `Saved`.
        target: As of `save_pruned`.
    """
    model, path = unwrap(model), _path_of(path)
    check_plan(plan)
    plan = _checked(unwrap(get_module(model, target)), plan)
    with naming_the_folder(path):
        _check_free(path)
    warn_unless_finite(model, path)
    with atomic_folder(path) as folder:
        save_weights(model, folder / WEIGHTS)
        if not target:
            _save_config(model, folder)
        saved = Saved(run=run, sha256={WEIGHTS: sha256_of(folder / WEIGHTS)}, target=target)
        write_plan(folder / PLAN, plan.to_dict(), plan.tensors, saved)
    return path


def load_pruned(path: str | Path, model: nn.Module | type[nn.Module] | None = None) -> nn.Module:
    """Make a pruned model again, with the weights in the dtype of the file; adapters in it are merged.

    Args:
        path: A folder of `save_pruned`, or a checkpoint that a Trainer with one of our callbacks saved: a file, or the
            folder of a distributed checkpoint (FSDPStrategy, ModelParallelStrategy).
        model: None: the dense model is rebuilt from the plan (timm, transformers, torchvision, ultralytics); a warning
            says if the checkpoint holds weights beside that network, such as a decoder's. A dense network: it is pruned
            in place and gets the weights, on its device; where the folder holds more than that network, all of this.
            A LightningModule class, for checkpoints: it is built as `load_from_checkpoint` builds it, from the file's
            hyperparameters, and pruned just before its weights load. A LightningModule, for checkpoints: built as
            before the fit, where its class takes arguments that are no plain data (a network, an optimizer's class); it
            is pruned in place.

    Returns:
        The network in evaluation mode; for a class the LightningModule, in the mode in which Lightning leaves it; the
        LightningModule that was passed, in evaluation mode.

    Raises:
        FileNotFoundError: If there is no such file or folder, or the folder lacks a file.
        ValueError: If it cannot be read, is of a run without pruning or of a newer version, cannot be rebuilt, or if
            its weights are not for the structure that its plan leaves. A model that was passed stays as it was.
        TypeError: If `model` cannot take what `path` holds.
    """
    path = whole_folder(_path_of(path))
    if not path.exists():
        raise FileNotFoundError(
            f"Expected a folder of save_pruned or a Lightning checkpoint, but {path} does not exist."
        )
    if isinstance(model, type):
        _check_class(model, path)
        return load_class(model, read_checkpoint(path))
    if path.is_dir() and not is_distributed(path):
        return _open_folder(path, model)
    file = read_checkpoint(path)
    if _is_whole_module(model, file):
        return load_instance(model, file)
    network = load_network(file, model)
    if model is None:
        _warn_of_others(file)
    return network


def load_network(file: LightningFile, model: nn.Module | None = None) -> nn.Module:
    """Make the one pruned network of a checkpoint again, as `load_pruned` does, whatever else the file holds.

    Args:
        file: What `read_checkpoint` returned.
        model: The dense network; None: it is rebuilt.

    Raises:
        ValueError: If the file has none or several, or its weights are not for the structure that its plan leaves.
        TypeError: If `model` is no network.
    """
    return _open_network(file.path, model, *_only_network(file))


def _open_folder(path: Path, model: nn.Module | None) -> nn.Module:
    plan, weights, target = _read_folder(path)
    if not target:
        return _open_network(path, model, plan, weights, None)
    if model is None:
        raise ValueError(
            f"Expected the dense model around the network at '{target}', since {path} holds all of it and its plan is "
            "for that network. Build it as before it was pruned, and pass it: load_pruned(path, model)."
        )
    whole = unwrap(model)
    prune_and_fill(unwrap(get_module(whole, target)), plan, weights, path, whole=whole)
    return whole.eval()


def _open_network(
    path: Path, model: nn.Module | None, plan: Plan, weights: Weights, adapters: Adapters | None
) -> nn.Module:
    _check_network(model, plan)
    network = dense_of(plan, path) if model is None else unwrap(model)
    prune_and_fill(network, plan, weights, path, adapters)
    if adapters is not None:
        merge_adapters(network, adapters)
    return network.eval()


def _warn_of_others(file: LightningFile) -> None:
    """Say so if the network that is returned is not all that the file holds."""
    (target,) = file.networks
    beside = file.beside(target)
    if beside:
        cls = (file.class_path or "YourModule").rpartition(".")[2]
        warnings.warn(
            f"load_pruned(path) returns the network at '{target}' alone, but {file.path} also holds "
            f"{', '.join(beside[:3])}{' and others' if len(beside) > 3 else ''}. If the LightningModule's outputs need "
            f"them, load_pruned(path, {cls}) returns all of it.",
            stacklevel=3,
        )


def _path_of(path: str | Path) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"Expected a path, but got {type(path).__name__}. Name the folder or file, such as 'pruned'.")
    return Path(path)


def _checked(model: nn.Module, plan: Plan) -> Plan:
    """Return the plan to write; for a dense model without one, a plan that says how to build it."""
    if not plan.edits and not plan.source.tensors:
        return plan.model_copy(update={"source": source_of(model)})
    found, expected = tensors_hash(model), end_of(plan)
    if found != expected:
        hint = "Was it merged after the plan was made? Pass plan + merge(model)."
        if found == plan.source.tensors:
            hint = "It is still dense: apply_plan(model, plan) first."
        raise ValueError(
            f"Expected the model that the plan leaves ({expected[:12]}), but got another {type(model).__name__} "
            f"({found[:12]}). {hint}"
        )
    return plan


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
    """Let `from_pretrained` open the folder, or fail with what to call where the model is no standard one."""
    if not is_transformers_model(model):
        return
    if not _is_standard(model):  # AutoModel's error repeats the type, that of a class of its own the dtype
        write_text(folder / CONFIG, json.dumps({"model_type": NOT_STANDARD, "dtype": NOT_STANDARD}, indent=2))
        return
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.dtype = str(model.dtype).removeprefix("torch.")
    config.to_json_file(folder / CONFIG)
    if model.can_generate() and model.generation_config is not None:
        model.generation_config.to_json_file(folder / GENERATION)


def _is_standard(model: Any) -> bool:
    """Whether `from_pretrained` gives the same model; it starts anew: RWKV's weights would be divided twice."""
    constructor, use = constructor_of(model), use_of(model)
    return constructor is not None and (not use or use == use_of(build(constructor)))


def standard_class(folder: Path) -> str | None:
    """Return the name of the class whose `from_pretrained` opens a folder of `save_pruned`; None: there is none."""
    found = json.loads((folder / CONFIG).read_text(encoding="utf-8")) if (folder / CONFIG).is_file() else {}
    return next(iter(found.get("architectures", ())), None)


def _check_class(cls: type, path: Path) -> None:
    if not hasattr(cls, "load_from_checkpoint"):
        raise TypeError(f"Expected a LightningModule class, a network or None, but got the class {cls.__name__}.")
    if path.is_dir() and not is_distributed(path):
        raise TypeError(
            f"Expected a Lightning checkpoint for the class {cls.__name__}, but {path} is a folder, which holds only "
            "the network. Call load_pruned(path), and put what it returns into your LightningModule."
        )


def _is_whole_module(model: object, file: LightningFile) -> bool:
    """Whether this is the LightningModule that holds the file's networks, rather than a network that is one itself."""
    if not isinstance(model, nn.Module) or not hasattr(model, "load_from_checkpoint"):
        return False
    (plan, *others) = file.networks.values() or [None]
    return bool(others) or plan is None or tensors_hash(unwrap(model)) != plan.source.tensors


def _check_network(model: object, plan: Plan) -> None:
    if model is None:
        return
    if not isinstance(model, nn.Module):
        raise TypeError(f"Expected a LightningModule class, a network or None, but got {type(model).__name__}.")
    if hasattr(model, "load_from_checkpoint") and tensors_hash(unwrap(model)) != plan.source.tensors:
        raise TypeError(
            f"Expected the network inside {type(model).__name__} for a folder, which holds only the network, but got a "
            "LightningModule instance. Pass the network, such as module.model."
        )


def _read_folder(path: Path) -> tuple[Plan, Weights, str]:
    if not (path / PLAN).is_file():
        hint = next((hint for name, hint in FOREIGN.items() if (path / name).is_file()), "Is it the right one?")
        raise FileNotFoundError(f"Expected a folder of save_pruned, but {path} has no {PLAN}. {hint}")
    plan, saved = Plan.load(path / PLAN), read_saved(read_data(path / PLAN))
    expected = saved.sha256.get(WEIGHTS)  # None: folders of version 0.1.0 do not say
    return plan, read_weights(path / WEIGHTS, expected), saved.target


def _only_network(file: LightningFile) -> tuple[Plan, Weights, Adapters | None]:
    if len(file.networks) != 1:
        held = ", ".join(map(repr, file.networks)) or "it was saved before the first surgery"
        raise ValueError(
            f"Expected a checkpoint with one pruned network, but {file.path} has {len(file.networks)} ({held}). "
            "Pass the LightningModule class: load_pruned(path, MyModule)."
        )
    ((target, plan),) = file.networks.items()
    return plan, file.weights_of(target), file.adapters.get(target)
