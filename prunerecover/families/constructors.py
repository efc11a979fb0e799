"""Constructors of dense models as plain data: a name and arguments (timm, torchvision), a config, or a YAML.

Data from a file can neither execute nor fetch anything. Only constructors of timm, transformers, torchvision and
ultralytics are called, and constructors registered with timm or torchvision by an imported module (such as
`cifar_resnet20` of the recipes). Arguments shape a network only: no file, address, checkpoint or code. No library keeps
the arguments of a model: arguments are read off the model, and returned only if the rebuilt model equals the original
but for the values of parameters. Not covered: layers given as classes, networks that run a backbone during construction
(timm's hybrid ViTs), models of further libraries.
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
from prunerecover.families.outline import Outline, text_of
from prunerecover.model.hashing import tensors_hash
from prunerecover.model.replacements import Replacement, SlopeBias

COUNTS = ("depth", "layer", "block", "expert")  # parts of the names of module counts
MOST_MODULES, LARGEST_NUMBER = 2**12, 2**31
WHY = 200  # characters of a reason


@dataclass(frozen=True)
class _Library:
    """Constructors of the models of a library.

    Attributes:
        candidates: Function from a model to its possible constructors; none for a model of another library.
        call: Function from a constructor to the call that builds the model.
        empty: Function that runs the call, with parameters on the meta device.
        bystanders: Attributes without effect on the outputs of the models, besides the attributes in `outline`.
    """

    candidates: Callable[[Any], Iterator[dict[str, Any]]]
    call: Callable[[dict[str, Any]], Callable[[], nn.Module]]
    empty: Callable[[Callable[[], nn.Module]], nn.Module] = on_meta
    bystanders: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Construction:
    """Constructor of a model, or the reason for its absence.

    Attributes:
        data: Argument of `build`; None if no candidate rebuilds the model.
        why_not: Reason for the absence of data.
    """

    data: dict[str, Any] | None
    why_not: str = ""


LIBRARIES = {
    "timm": _Library(timm_candidates, timm_call),
    "transformers": _Library(transformers_candidates, transformers_call),
    # Shapes show the number of classes, also with a replaced head.
    "torchvision": _Library(torchvision_candidates, torchvision_call, on_meta_if_possible, frozenset({"num_classes"})),
    # A YOLO runs during construction, and keeps counts.
    "ultralytics": _Library(
        ultralytics_candidates, ultralytics_call, emptied, frozenset({"nc", "np", "task", "pt_path"})
    ),
}


def constructor_of(model: nn.Module) -> dict[str, Any] | None:
    """Return the data for `build` to make a dense model again, or None if unknown.

    Args:
        model: Network, unwrapped, on any device; the model and the random state stay unchanged.

    Returns:
        JSON primitives. The rebuilt model was compared with the original; see `outline`.
    """
    return construction_of(model).data


def construction_of(model: nn.Module) -> Construction:
    """Return the constructor of a dense model, as `constructor_of` does, or the reason for its absence."""
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
        ValueError: If the data names anything but a model of a known library with arguments for its shape, or the build
            fails.
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
    """Return the library of a constructor's model.

    Raises:
        ValueError: If no known library is named.
    """
    known = next((name for name in LIBRARIES if name in constructor), None)
    if known is None:
        raise ValueError(
            f"Expected a constructor of {', '.join(LIBRARIES)}, but got {sorted(constructor)}. "
            "Build the dense model yourself and pass it: load_pruned(path, model)."
        )
    return known


def is_described_by_config(model: Any) -> bool:
    """Whether a transformers model, also of a custom class, equals the model built by its class from the config.

    The comparison covers the text (`repr`) and the names and shapes of all tensors, as for `from_pretrained`.
    """
    try:
        built = on_meta(lambda: type(model)(config_from(type(model.config), config_data(model.config))))
    except Exception:  # a user's class may need more than a config
        return False
    return text_of(built) == text_of(model) and tensors_hash(built) == tensors_hash(model)


def _check_counts(data: Any, name: str = "") -> None:
    """Refuse numbers that would make the construction endless or fill the memory."""
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
    """Outline the model of a JSON constructor under a default dtype; cached, as a search repeats descriptions."""
    return Outline.of(build(json.loads(constructor)), LIBRARIES[library].bystanders)


def _why_not(constructor: dict[str, Any], library: str, own: Outline) -> str:
    """Return the reason why a constructor does not make the outlined model; empty if it does."""
    try:
        built = _outline(json.dumps(constructor), library, torch.get_default_dtype())
    except Exception as error:  # a wrong guess may fail in any way
        return f"building it again fails: {str(error.__cause__ or error).strip()}"
    return next(own.differences(built), "")
