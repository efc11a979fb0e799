"""Pruned models as folders: saving, and loading from a folder or from a Lightning checkpoint.

A folder holds plan.json (with a sidecar for fitted tensors) and model.safetensors. A transformers model that is still
standard (whole blocks removed, all layers narrowed alike, no replacements) also gets its config.json for
`from_pretrained`. Any other transformers model gets a config.json that makes `from_pretrained` fail with the right call
in the message, instead of building a model of full size with random weights. A folder may hold more than the pruned
network: plan.json then holds the path of the network.
"""

from __future__ import annotations

import copy
import json
import os
import warnings
from pathlib import Path
from typing import Any

from torch import nn

from prunerecover.checkpoint.lightning_file import LightningFile, is_checkpoint, read_checkpoint
from prunerecover.checkpoint.lightning_module import load_class, load_instance
from prunerecover.checkpoint.replay import dense_of, end_of, prune_and_fill
from prunerecover.checkpoint.trainer_folder import is_of_trainer
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
    """Write a folder from which `load_pruned` rebuilds the same model, in any process.

    Args:
        model: Network after the plan was applied, wrapped or not, on any device; not changed.
        plan: Plan with all edits, `plan + merge(model)` for a merged model; `Plan()` for a dense model.
        path: Folder, written completely or not at all; an existing folder of `save_pruned` is replaced.
        target: Path of the pruned network in a larger model: "backbone" of a segmenter.

    Returns:
        The folder's path.

    Raises:
        ValueError: If the model differs from the plan's result, has no values, or lacks a module at `target`.
        FileExistsError: If other content than a folder of `save_pruned` is at `path`.
        OSError: If the parent folder is full or read-only.
    """
    return write_folder(model, plan, path, target=target)


def write_folder(model: nn.Module, plan: Plan, path: str | Path, run: str = "", target: str = "") -> Path:
    """Write a folder as `save_pruned` does, with the name of the Trainer's run.

    Args:
        model: Network, see `save_pruned`.
        plan: Plan, see `save_pruned`.
        path: Folder, see `save_pruned`.
        run: Name of the run, see `Saved`.
        target: Path of the pruned network, see `save_pruned`.
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
    """Rebuild a pruned model, with the weights in the dtype of the file; adapters in the file are merged.

    Args:
        path: Folder of `save_pruned`, or checkpoint of a Trainer with a callback of this package: a file, or the folder
            of a distributed checkpoint (FSDPStrategy, ModelParallelStrategy) or of a transformers Trainer.
        model: None: the dense model is rebuilt from the plan (timm, transformers, torchvision, ultralytics); a warning
            names weights of the checkpoint beside the network, such as a decoder's. A dense network: pruned in place
            and filled with the weights, on its device; where the folder holds more than the network, pass the whole
            model. A LightningModule class, for checkpoints: built by `load_from_checkpoint` from the file's
            hyperparameters, and pruned just before the weights load. A LightningModule, for checkpoints: built as
            before the fit, where the class takes arguments outside plain data (a network, an optimizer's class), and
            pruned in place.

    Returns:
        The network in evaluation mode; for a class the LightningModule, in Lightning's mode after loading; for a
        LightningModule the same object, in evaluation mode.

    Raises:
        FileNotFoundError: If the file or folder is missing, or the folder lacks a file.
        ValueError: If the file cannot be read, comes from a run without pruning or from a newer version, cannot be
            rebuilt, or holds weights for another structure than the plan's result. A given model stays unchanged.
        TypeError: If `model` cannot take the content of `path`.
    """
    path = whole_folder(_path_of(path))
    if not path.exists():
        raise FileNotFoundError(
            f"Expected a folder of save_pruned or a Lightning checkpoint, but {path} does not exist."
        )
    if isinstance(model, type):
        _check_class(model, path)
        return load_class(model, read_checkpoint(path))
    if not is_checkpoint(path):
        return _open_folder(path, model)
    file = read_checkpoint(path)
    if _is_whole_module(model, file):
        return load_instance(model, file)
    network = load_network(file, model)
    if model is None:
        _warn_of_others(file)
    return network


def load_network(file: LightningFile, model: nn.Module | None = None) -> nn.Module:
    """Rebuild the single pruned network of a checkpoint, as `load_pruned` does, and ignore further content.

    Args:
        file: Checkpoint from `read_checkpoint`.
        model: Dense network; None: rebuilt from the plan.

    Raises:
        ValueError: If the file has no or several networks, or weights for another structure than the plan's result.
        TypeError: If `model` is no network.
    """
    return _open_network(file.path, model, *_only_network(file))


def _open_folder(path: Path, model: nn.Module | None) -> nn.Module:
    plan, weights, target = _read_folder(path)
    if not target:
        return _open_network(path, model, plan, weights, None)
    if model is None:
        raise ValueError(
            f"Expected the dense model around the network at '{target}', because {path} holds the whole model and a "
            "plan for that network. Build the model as before pruning, and pass it: load_pruned(path, model)."
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
    """Warn if the file holds more than the returned network."""
    (target,) = file.networks
    beside = file.beside(target)
    if beside:
        whole = "YourModel(...)" if is_of_trainer(file.path) else (file.class_path or "YourModule").rpartition(".")[2]
        warnings.warn(
            f"load_pruned(path) returns the network at '{target}' alone, but {file.path} also holds "
            f"{', '.join(beside[:3])}{' and others' if len(beside) > 3 else ''}. If outputs need them, "
            f"load_pruned(path, {whole}) returns all of it.",
            stacklevel=3,
        )


def _path_of(path: str | Path) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"Expected a path, but got {type(path).__name__}. Name the folder or file, such as 'pruned'.")
    return Path(path)


def _checked(model: nn.Module, plan: Plan) -> Plan:
    """Return the plan to write; for a dense model without a source, a plan with the model's constructor."""
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
    """Let `from_pretrained` open the folder, or fail with the right call for a non-standard model."""
    if not is_transformers_model(model):
        return
    if not _is_standard(model):  # AutoModel's error repeats the type, the error of a specific class the dtype
        write_text(folder / CONFIG, json.dumps({"model_type": NOT_STANDARD, "dtype": NOT_STANDARD}, indent=2))
        return
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.dtype = str(model.dtype).removeprefix("torch.")
    config.to_json_file(folder / CONFIG)
    if model.can_generate() and model.generation_config is not None:
        model.generation_config.to_json_file(folder / GENERATION)


def _is_standard(model: Any) -> bool:
    """Whether `from_pretrained` gives the same model; RWKV in use is excluded: its weights would be divided twice."""
    constructor, use = constructor_of(model), use_of(model)
    return constructor is not None and (not use or use == use_of(build(constructor)))


def standard_class(folder: Path) -> str | None:
    """Return the name of the class whose `from_pretrained` opens a folder of `save_pruned`, or None."""
    found = json.loads((folder / CONFIG).read_text(encoding="utf-8")) if (folder / CONFIG).is_file() else {}
    return next(iter(found.get("architectures", ())), None)


def _check_class(cls: type, path: Path) -> None:
    if not hasattr(cls, "load_from_checkpoint"):
        raise TypeError(f"Expected a LightningModule class, a network or None, but got the class {cls.__name__}.")
    if not is_checkpoint(path):
        raise TypeError(
            f"Expected a Lightning checkpoint for the class {cls.__name__}, but {path} is a folder, which holds only "
            "the network. Call load_pruned(path), and put what it returns into your LightningModule."
        )


def _is_whole_module(model: object, file: LightningFile) -> bool:
    """Whether a model is the Trainer's whole module around the networks, not a network alone."""
    if not isinstance(model, nn.Module) or not (hasattr(model, "load_from_checkpoint") or is_of_trainer(file.path)):
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
    expected = saved.sha256.get(WEIGHTS)  # None for folders of version 0.1.0
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
