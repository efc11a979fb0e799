"""Constructors of dense models as plain data: a name and arguments (timm, torchvision), a config, or a YAML.

Only the own constructors of timm, transformers, torchvision and ultralytics are ever called, and those that a module
which is imported already has registered with timm or torchvision (such as `cifar_resnet20` of the recipes), with
arguments that shape a network and nothing else (no file, address, checkpoint or code can be named), so a file can
neither execute nor fetch anything. No library keeps the arguments of a model for good: they are read off the model, and
returned only if building from them gives the same model but for the values of parameters. Not covered: layers handed in
as classes, networks that run a backbone while they are built (timm's hybrid ViTs), models of other libraries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from prunerecover.families.libraries.empty_models import emptied, on_meta, on_meta_if_possible
from prunerecover.families.libraries.timm_constructor import timm_call, timm_candidates
from prunerecover.families.libraries.torchvision_constructor import torchvision_call, torchvision_candidates
from prunerecover.families.libraries.transformers_constructor import (
    config_data,
    config_from,
    transformers_call,
    transformers_candidates,
)
from prunerecover.families.libraries.ultralytics_constructor import ultralytics_call, ultralytics_candidates
from prunerecover.families.outline import Outline
from prunerecover.model.hashing import tensors_hash
from prunerecover.model.replacements import Replacement, SlopeBias

COUNTS = ("depth", "layer", "block", "expert")  # in names of numbers that say how many modules there are
MOST_MODULES, LARGEST_NUMBER = 2**12, 2**31
WHY = 200  # characters of a reason


@dataclass(frozen=True)
class _Library:
    """How the models of a library are described, and built again.

    Attributes:
        candidates: Constructors that may be a model's, none if it is of another library.
        call: Makes the call of a constructor.
        empty: Runs that call, and leaves parameters on the meta device.
        bystanders: Attributes beside those of `outline` that do not change what its models compute.
    """

    candidates: Callable[[Any], Iterator[dict[str, Any]]]
    call: Callable[[dict[str, Any]], Callable[[], nn.Module]]
    empty: Callable[[Callable[[], nn.Module]], nn.Module] = on_meta
    bystanders: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Construction:
    """How a model is built.

    Attributes:
        data: What `build` takes; None if building the model again was tried in vain.
        why_not: Why there is none.
    """

    data: dict[str, Any] | None
    why_not: str = ""


LIBRARIES = {
    "timm": _Library(timm_candidates, timm_call),
    "transformers": _Library(transformers_candidates, transformers_call),
    # Shapes show the number of classes, also of a head that was put in later.
    "torchvision": _Library(torchvision_candidates, torchvision_call, on_meta_if_possible, frozenset({"num_classes"})),
    # A YOLO runs while it is built, and keeps counts.
    "ultralytics": _Library(
        ultralytics_candidates, ultralytics_call, emptied, frozenset({"nc", "np", "task", "pt_path"})
    ),
}


def constructor_of(model: nn.Module) -> dict[str, Any] | None:
    """Return the data that `build` needs to make this dense model again, or None if it is not known.

    Args:
        model: Unwrapped, on any device; it is not changed, nor is the random state.

    Returns:
        JSON primitives. Building from them was tried: see `outline` for what is compared.
    """
    return construction_of(model).data


def construction_of(model: nn.Module) -> Construction:
    """Return how to build a dense model again, as `constructor_of` does, or why that is not known."""
    if any(isinstance(module, Replacement | SlopeBias) for module in model.modules()):
        return Construction(None, "parts of it had been replaced before")
    outline, why = None, f"{type(model).__qualname__} is no class of {', '.join(LIBRARIES)} itself"
    for name, library in LIBRARIES.items():
        for candidate in library.candidates(model):
            outline = outline or Outline.of(model, library.bystanders)
            why = _why_not(candidate, name, outline)
            if not why:
                return Construction(candidate)
    return Construction(None, " ".join(why.split())[:WHY])


def build(constructor: dict[str, Any]) -> nn.Module:
    """Build the dense model with parameters on the meta device and buffers in memory; tied parameters are tied.

    Raises:
        ValueError: If the data names anything but a model of a known library with arguments that shape it.
    """
    known = library_of(constructor)
    if not isinstance(constructor.get("kwargs") or {}, dict):
        raise ValueError(
            f"Expected the arguments of a constructor by name, but got {str(constructor['kwargs'])[:60]}. Was the plan "
            "edited? Build the dense model yourself and pass it: load_pruned(path, model)."
        )
    _check_counts(constructor)
    make = LIBRARIES[known].call(constructor)
    try:
        return LIBRARIES[known].empty(make)
    except Exception as error:
        raise ValueError(
            f"Expected the installed {known} to build '{constructor[known]}', but it failed: {error}. "
            "Install the version that the plan was made with, or build the dense model and pass it."
        ) from error


def library_of(constructor: dict[str, Any]) -> str:
    """Return the library whose model a constructor makes.

    Raises:
        ValueError: If it is none of those that are known.
    """
    known = next((name for name in LIBRARIES if name in constructor), None)
    if known is None:
        raise ValueError(
            f"Expected a constructor of {', '.join(LIBRARIES)}, but got {sorted(constructor)}. "
            "Build the dense model yourself and pass it: load_pruned(path, model)."
        )
    return known


def is_described_by_config(model: Any) -> bool:
    """Whether a transformers model, also of an own class, is what its class builds from its config.

    Compared are the text (`repr`) and the names and shapes of all tensors: what `from_pretrained` has to go by.
    """
    try:
        built = on_meta(lambda: type(model)(config_from(type(model.config), config_data(model.config))))
    except Exception:  # a class of the user's own may take more than a config
        return False
    return repr(built) == repr(model) and tensors_hash(built) == tensors_hash(model)


def _check_counts(data: Any, name: str = "") -> None:
    """Refuse numbers with which building would never end, or fill the memory."""
    if isinstance(data, dict):
        for key, value in data.items():
            _check_counts(value, str(key))
    elif isinstance(data, list | tuple):
        for value in data:
            _check_counts(value, name)
    elif isinstance(data, int):
        counts = any(word in name for word in COUNTS) and not name.endswith(("size", "dim"))
        most = MOST_MODULES if counts else LARGEST_NUMBER
        if abs(data) > most:
            raise ValueError(
                f"Expected a constructor of a network that can be built, but got {name}={data!r:.40} (at most {most}). "
                "Was the plan edited? If not, build the dense model yourself and pass it: load_pruned(path, model)."
            )


@lru_cache(maxsize=32)
def _outline(constructor: str, library: str, dtype: torch.dtype) -> Outline:
    """Outline what this JSON builds under this default dtype; kept, since a search describes one model many times."""
    return Outline.of(build(json.loads(constructor)), LIBRARIES[library].bystanders)


def _why_not(constructor: dict[str, Any], library: str, own: Outline) -> str:
    """Return why `constructor` does not make the model that is outlined; empty if it does."""
    try:
        built = _outline(json.dumps(constructor), library, torch.get_default_dtype())
    except Exception as error:  # a guess may fail in any way; then it is not the constructor
        return f"building it again fails: {str(error.__cause__ or error).strip()}"
    return next(own.differences(built), "")
