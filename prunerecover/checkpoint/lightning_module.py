"""Opening of a checkpoint's LightningModule: from the class, or from an instance built by the user."""

from __future__ import annotations

import inspect
import io
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.checkpoint.distributed_folder import as_file
from prunerecover.checkpoint.lightning_file import LightningFile, before_loading, canonical
from prunerecover.checkpoint.plain_data import foreign_class
from prunerecover.checkpoint.replay import dense_of, prune_and_fill
from prunerecover.model.paths import get_module, unwrap
from prunerecover.recovery.lora import merge_adapters


def load_class(cls: Any, file: LightningFile) -> nn.Module:
    """Build a LightningModule as Lightning does, and prune the networks just before the weights load.

    If a hyperparameter is the pruned network itself, the network is rebuilt dense from the plan.

    Args:
        cls: Class of the LightningModule.
        file: Checkpoint of the LightningModule.

    Raises:
        ValueError: If required hyperparameters are no plain data, or the class loads other weights.
    """
    replayed: list[nn.Module] = []

    def replay(module: nn.Module) -> None:
        _prune(module, file)
        replayed.append(module)

    networks = _rebuilt(cls, file)
    source: Any = io.BytesIO(_plain_part(file)) if foreign_class(file.content) else as_file(file.path)
    try:
        with before_loading(cls, file, replay):
            module: nn.Module = cls.load_from_checkpoint(source, map_location="cpu", weights_only=True, **networks)
    except (LookupError, AttributeError, ArithmeticError, RuntimeError, TypeError, AssertionError) as error:
        raise ValueError(
            f"Expected {cls.__name__} to be built from the hyperparameters in {file.path} and to take the weights, but "
            f"it failed ({type(error).__name__}: {error}). Is it the class that the checkpoint was saved with?"
        ) from error
    if file.networks and module not in replayed:
        raise ValueError(
            f"Expected {cls.__name__} to load the weights of {', '.join(file.networks)} in {file.path}, but it "
            "loaded other weights. Build the network yourself, and pass it: load_pruned(path, network)."
        )
    _merge(module, file)
    return module


def load_instance(module: Any, file: LightningFile) -> nn.Module:
    """Prune the networks of a LightningModule in place and load all weights of the checkpoint.

    Args:
        module: LightningModule as before the fit; networks already pruned as in the file stay unchanged.
        file: Checkpoint of the LightningModule.

    Raises:
        ValueError: If the networks or the parts beside the networks do not fit.
    """
    checkpoint = dict(file.content)
    if hasattr(module, "on_load_checkpoint"):  # otherwise the model of a transformers Trainer
        module.on_load_checkpoint(checkpoint)
    weights = {canonical(name): value for name, value in checkpoint["state_dict"].items()}
    _check_beside(module, file, weights)
    _prune(module, file)
    names = {canonical(name): name for name in module.state_dict()}
    module.load_state_dict({names.get(name, name): value for name, value in weights.items()})
    _merge(module, file)
    return module.eval()  # type: ignore[no-any-return]


def _check_beside(module: nn.Module, file: LightningFile, weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError, before any change, unless the parts beside the networks match the file."""
    prefixes = tuple(f"{canonical(target)}." if target else "" for target in file.networks)
    expected, found = (
        {name: tuple(value.shape) for name, value in state.items() if not name.startswith(prefixes)}
        for state in ({canonical(name): value for name, value in module.state_dict().items()}, weights)
    )
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        raise ValueError(
            f"Expected {type(module).__name__} as it was before the fit that saved {file.path}, but {wrong[0]} "
            f"is {expected.get(wrong[0], 'missing')} in it and {found.get(wrong[0], 'missing')} in the file. Build it "
            "with the same arguments."
        )


def _prune(module: nn.Module, file: LightningFile) -> None:
    for target, plan in file.networks.items():
        network, adapters = unwrap(get_module(module, target)), file.adapters.get(target)
        prune_and_fill(network, plan, file.weights_of(target), file.path, adapters)


def _merge(module: nn.Module, file: LightningFile) -> None:
    for target, adapters in file.adapters.items():
        merge_adapters(get_module(module, target), adapters)


def _rebuilt(cls: Any, file: LightningFile) -> dict[str, nn.Module]:
    """Return the dense networks among the class's arguments, by argument."""
    takes = inspect.signature(cls).parameters
    any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    foreign = {name: path for name, path in file.foreign.items() if name in takes or any_name}
    known = {n: plan for n, plan in file.networks.items() if n in foreign and plan.source.constructor is not None}
    unknown = [f"{name} ({path})" for name, path in foreign.items() if name not in known]
    if unknown:
        raise ValueError(
            f"Expected only plain data among the hyperparameters in {file.path}, but got {', '.join(unknown)}, and "
            f"nothing in a file is executed. Build the module as before the fit and pass it: load_pruned(path, "
            f"{cls.__name__}(...)). save_hyperparameters(ignore=[...]) keeps them out of later files."
        )
    return {name: dense_of(plan, file.path) for name, plan in known.items()}


def _plain_part(file: LightningFile) -> bytes:
    """Return the plain data of the file, as a file."""
    content = {key: value for key, value in file.content.items() if foreign_class(value) is None}
    hparams = file.content.get("hyper_parameters", {})
    content["hyper_parameters"] = {name: value for name, value in hparams.items() if name not in file.foreign}
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()
