"""Weights in a safetensors file, and loading into a model with the right structure.

A tensor with several names in a model (tied embeddings) is stored once, and the file's metadata holds the further
names. Buffers outside the state dict (rotary tables) are rebuilt with the model, and the file holds their dtype. The
metadata also holds attributes that forward wrote on modules (RWKV notes its divided weights): see `model.settings`. Not
covered: further state besides tensors (`get_extra_state`).

`save_model` and `load_model` of safetensors do not serve here. They leave out every tensor that overlaps with another,
and refuse tensors over a part of their storage. On loading, names share a tensor as in the given model, not as in the
file; values are cast to the model's dtype; and parameters on the meta device stay there.
"""

from __future__ import annotations

import json
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import Parameter

from prunerecover.files.hashes import sha256_of
from prunerecover.model.checks import NOT_IN_FILES, check_unquantised
from prunerecover.model.settings import Use, restore_use, use_of

ALIASES = "prunerecover.aliases"
TABLES = "prunerecover.tables"
DTYPES = "prunerecover.dtypes"
USE = "prunerecover.use"
SHOWN = 3


@dataclass(frozen=True)
class Weights:
    """Content of a file for a network.

    Attributes:
        tensors: Tensors by canonical name; names with a shared tensor in the file share the tensor here.
        tables: Dtypes of the buffers outside the state dict, by name, as in "bfloat16".
        use: Attributes written by forward on modules, from `use_of`.
        dtypes: Names of the dtypes of the saved parameters; empty: unknown.
        file: File with the tensors, read when needed; None: the tensors are in memory.
        sha256: Hash of the file when saved; None: unknown.
    """

    tensors: dict[str, Tensor]
    tables: dict[str, str] = field(default_factory=dict)
    use: Use = field(default_factory=dict)
    dtypes: frozenset[str] = frozenset()
    file: Path | None = None
    sha256: str | None = None


def save_weights(model: nn.Module, path: Path) -> None:
    """Write all parameters and persistent buffers of a model, in the model's dtypes.

    Raises:
        ValueError: If tensors are on the meta device, without values to save, or quantised.
    """
    check_unquantised(model, "to save", NOT_IN_FILES)
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    empty = [name for name, value in state.items() if value.is_meta]
    if empty:
        raise ValueError(
            f"Expected a model with values, but got {_some(empty)} on the meta device. Load its weights first."
        )
    first: dict[object, str] = {}
    aliases = {}
    for name, value in state.items():
        leader = first.setdefault(_place(name, value), name)
        if leader != name:
            aliases[name] = leader
    tables = {path: _named(getattr(module, name)) for module, name, path in _tables(model)}
    dtypes = sorted({_named(p) for p in model.parameters() if p.is_floating_point()})
    stored = {name: _alone(value) for name, value in state.items() if name not in aliases}
    said = {ALIASES: aliases, TABLES: tables, DTYPES: dtypes, USE: use_of(model)}
    save_file(stored, path, {"format": "pt", **{key: json.dumps(value) for key, value in said.items()}})


def read_weights(path: Path, sha256: str | None = None) -> Weights:
    """Read a file of `save_weights`, or any safetensors file; of the tensors, only the shapes.

    Args:
        path: File, unchanged until `fill` has read the tensors.
        sha256: Hash of the file, see `Weights`.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If the file cannot be read.
    """
    if not path.is_file():
        raise FileNotFoundError(f"Expected the weights of a pruned model at {path}, but there is no such file.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        aliases, tables, use = (json.loads(metadata.get(key, "{}")) for key in (ALIASES, TABLES, USE))
        tensors |= {name: tensors[leader] for name, leader in aliases.items()}
        tables = {str(name): str(dtype) for name, dtype in tables.items()}
        use = {str(name): dict(own) for name, own in use.items()}
        dtypes = frozenset(map(str, json.loads(metadata.get(DTYPES, "[]"))))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"Expected weights in safetensors at {path}, but they cannot be read: {str(error)[:200]}. Is the file cut "
            "off? Copy it again."
        ) from None
    return Weights(tensors, tables, use, dtypes, path, sha256)


def check_fit(model: nn.Module, weights: Weights, where: str) -> None:
    """Raise ValueError unless the weights match the structure exactly: the same names, the same shapes.

    A file is hashed only if the shapes are right: a file may claim any number of gigabytes.

    Args:
        model: Network with the structure of the weights; buffers outside files must be in memory.
        weights: Weights of the file.
        where: Name of the file, for the message.
    """
    _check_names_and_shapes(model, weights.tensors, where)
    if weights.file is not None and weights.sha256 not in (None, sha256_of(weights.file)):
        raise ValueError(
            f"Expected the weights that {where} was saved with, but {weights.file.name} has another sha256. Copy the "
            "folder again from where it was made."
        )


def _check_names_and_shapes(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    empty = [path for module, name, path in _tables(model) if getattr(module, name).is_meta]
    if empty:
        raise ValueError(
            f"Expected a model whose buffers are in memory, but got {_some(empty)} on the meta device, and no file "
            "holds them. Build it under accelerate.init_empty_weights(include_buffers=False), or on the CPU."
        )
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    expected = {name: tuple(value.shape) for name, value in own.items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    shapes = (f"{n} {found[n]} instead of {expected[n]}" for n in expected if found.get(n, expected[n]) != expected[n])
    differences = {
        "lacks": [name for name in expected if name not in found],
        "has besides": [name for name in found if name not in expected],
        "has other shapes": list(shapes),
        "has other kinds of numbers": [n for n, v in own.items() if n in weights and _kind(weights[n]) != _kind(v)],
    }
    problems = "; ".join(f"{verb} {_some(names)}" for verb, names in differences.items() if names)
    if problems:
        raise ValueError(
            f"Expected the weights of the {type(model).__name__} that the plan leaves ({len(expected)} tensors), but "
            f"{where} {problems}. Were plan and weights saved together?"
        )


def fill(model: nn.Module, weights: Weights) -> None:
    """Load values into a model, in the dtype of the file; tensors on the meta device become real.

    Existing parameters stay the same objects, on their device. Names share a parameter afterwards if they share it in
    the file, or if they share it in the model and the file has equal values for both.

    Args:
        model: Network with a structure confirmed by `check_fit`.
        weights: Values of the network.
    """
    values: dict[str, Tensor] = {}
    by_place: dict[object, str] = {}
    by_parameter: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    for name, old in state.items():
        new = weights.tensors[name]
        twin = by_place.setdefault(_place(name, new), name)
        tied = by_parameter.setdefault(id(old), name)
        if twin != name:
            values[name] = values[twin]
        elif tied != name and torch.equal(weights.tensors[tied], new):
            values[name] = values[tied]
        else:
            # Copied: tensors in a file begin at any byte, and some kernels round differently on unaligned memory.
            values[name] = _filled(old, new if weights.file is None else new.clone(), anew=tied != name)
    filled = OrderedDict(values)
    filled._metadata = getattr(state, "_metadata", {})  # type: ignore[attr-defined]  # versions, for MNASNet
    model.load_state_dict(filled, strict=True, assign=True)
    for module, name, path in _tables(model):
        dtype = getattr(torch, weights.tables.get(path, ""), None)
        if isinstance(dtype, torch.dtype):
            module._buffers[name] = getattr(module, name).to(dtype)
    restore_use(model, weights.use)


def warn_if_mixed(model: nn.Module, weights: Weights, where: str) -> None:
    """Warn of parameters in several dtypes, unless the saved model or the given model mixes the same dtypes.

    Args:
        model: Network with a structure confirmed by `check_fit`, before `fill`.
        weights: Weights of the file.
        where: Name of the file, for the message.
    """
    parts: dict[torch.dtype, dict[str, list[str]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and name in weights.tensors:
            parts.setdefault(parameter.dtype, {}).setdefault(_named(weights.tensors[name]), []).append(name)
    for found in parts.values():
        usual, *others = sorted(found, key=lambda dtype: -len(found[dtype]))
        if others and not weights.dtypes >= found.keys():
            odd = [name for dtype in others for name in found[dtype]]
            warnings.warn(
                f"Expected weights of one dtype in {where}, but got {usual} and, for {_some(odd)}, "
                f"{' and '.join(others)}. They keep their dtypes, and layers with both will fail. Copy the file again "
                f"if this was not intended, or convert the model: model.to(torch.{usual}).",
                stacklevel=2,
            )


def _named(tensor: Tensor) -> str:
    """Return the name of a tensor's dtype, as in "bfloat16"."""
    return str(tensor.dtype).removeprefix("torch.")


def _filled(old: Tensor, new: Tensor, anew: bool) -> Tensor:
    """Load values into a model's tensor; into a new tensor, if it is on the meta device or already filled."""
    value = new if old.is_meta else new.to(old.device)
    if not isinstance(old, Parameter):
        return value
    if old.is_meta or anew:
        return Parameter(value, requires_grad=old.requires_grad)
    old.grad = None
    old.data = value
    return old


def _tables(model: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """Floating-point buffers outside the state dict: module, name in the module, full name."""
    for prefix, module in model.named_modules():
        for name in sorted(module._non_persistent_buffers_set):
            if isinstance(module._buffers.get(name), Tensor) and getattr(module, name).is_floating_point():
                yield module, name, f"{prefix}.{name}" if prefix else name


def _place(name: str, value: Tensor) -> object:
    """Return a common key for all names of a tensor; for a tensor without elements, the name itself."""
    if not value.numel() or value.is_meta:
        return name
    return (value.device, value.data_ptr(), value.shape, value.stride(), value.dtype)


def _alone(value: Tensor) -> Tensor:
    """Return the tensor on the CPU with separate memory, as required by safetensors."""
    value = value.detach().cpu().contiguous()
    return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()


def _kind(value: Tensor) -> tuple[bool, bool, bool]:
    return value.is_floating_point(), value.is_complex(), value.dtype == torch.bool


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
