"""Size attributes of modules (`in_channels`), read off the shapes of the tensors.

Covers PyTorch's convolutions, linears, recurrent layers, norms, embeddings and PReLU, subclasses in timm and
torchvision, and transformers' `Conv1D`. Numbers that no shape shows (heads, groups of a GroupNorm, the scale of an
attention's logits) are a `Setting` of the group. Not covered: bilinear layers, `proj_size`, and embeddings with
`padding_idx` that lose rows. The module also holds the settings that stop PyTorch from fusing removed parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from prunerecover.model.paths import get_module, holder_of, parent_path
from prunerecover.model.settings import HEADS, KEY_VALUE_HEADS, alone, like
from prunerecover.plan.edits import Narrow
from prunerecover.plan.groups import Setting

Shape = tuple[int, ...]
GATES = {"LSTM": 4, "GRU": 3}


def sizes_of(path: str, module: nn.Module, shapes: Mapping[str, Shape], rows: Tensor | None = None) -> dict[str, Any]:
    """Return the size attributes of a module for new shapes of the tensors.

    Args:
        path: Path of the module, for messages.
        module: Module before the change.
        shapes: Shapes of the module's own parameters and buffers after the change, by name.
        rows: Kept indices of the weight's first dimension; None: all.

    Raises:
        ValueError: If the shapes do not fit together.
    """
    if isinstance(module, nn.RNNBase):
        return _recurrent(path, module, shapes)
    weight = shapes.get("weight", ())
    if isinstance(module, _ConvNd):
        return _convolution(path, module, shapes, rows)
    if isinstance(module, _NormBase | nn.GroupNorm):
        lengths = {name: shape[0] for name, shape in shapes.items() if shape}
        name = "num_channels" if isinstance(module, nn.GroupNorm) else "num_features"
        return {name: _agreed(path, lengths)} if lengths else {}
    if type(module).__name__ == "Conv1D":
        _agreed(path, {"weight": weight[1], **_bias(shapes)})
        return {"nx": weight[0], "nf": weight[1]}
    if isinstance(module, nn.Linear):
        _agreed(path, {"weight": weight[0], **_bias(shapes)})
        return {"in_features": weight[1], "out_features": weight[0]}
    if isinstance(module, nn.Embedding):
        return {"num_embeddings": weight[0], "embedding_dim": weight[1]}
    if isinstance(module, nn.PReLU):
        return {"num_parameters": weight[0]}
    if hasattr(module, "normalized_shape") and weight:
        _agreed(path, {"weight": weight[0], **_bias(shapes)})
        return {"normalized_shape": weight}
    return {}


def check_norm_groups(path: str, module: nn.Module, sizes: Mapping[str, Any]) -> None:
    """Raise ValueError if the groups of a GroupNorm no longer divide the channels.

    Args:
        path: Path of the module, for messages.
        module: Module before the change; modules of any other class pass.
        sizes: Changed attributes by name, for example `num_channels`.
    """
    if not isinstance(module, nn.GroupNorm):
        return
    channels, groups = (sizes.get(name, getattr(module, name)) for name in ("num_channels", "num_groups"))
    if channels % groups:
        raise ValueError(
            f"Expected the {groups} groups of '{path}' to be of one size, but {channels} channels would be left. Keep "
            f"a multiple of {groups}."
        )


def _convolution(path: str, conv: _ConvNd, shapes: Mapping[str, Shape], rows: Tensor | None) -> dict[str, int]:
    first, second = shapes["weight"][:2]
    groups = conv.groups
    if groups > 1 and rows is not None:
        in_group = torch.bincount(rows // (conv.weight.shape[0] // groups), minlength=groups)
        left = in_group[in_group > 0]
        if (left != left[0]).any():
            raise ValueError(
                f"Expected the groups of the convolution '{path}' to keep equally many channels or none, but "
                f"{in_group.tolist()} would be left. Keep the same number in each."
            )
        groups = len(left)
    inner, outer = (first, second * groups) if conv.transposed else (second * groups, first)
    _agreed(path, {"weight": outer, **_bias(shapes)})
    return {"in_channels": inner, "out_channels": outer, "groups": groups}


def _recurrent(path: str, module: nn.RNNBase, shapes: Mapping[str, Shape]) -> dict[str, int]:
    if module.proj_size:
        raise ValueError(f"Expected the sizes of '{path}' to stay, but it projects its states. Leave it as it is.")
    size = _agreed(path, {name: shape[1] for name, shape in shapes.items() if "weight_hh" in name})
    rows = {name: shape[0] for name, shape in shapes.items()}
    _agreed(path, {**rows, "hidden units in all gates": GATES.get(module.mode, 1) * size})
    return {"hidden_size": size, "input_size": shapes["weight_ih_l0"][1]}


def _bias(shapes: Mapping[str, Shape]) -> dict[str, int]:
    return {"bias": shapes["bias"][0]} if "bias" in shapes else {}


def _agreed(path: str, lengths: Mapping[str, int]) -> int:
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(
            f"Expected the tensors of '{path}' to keep one length, but got {found}. "
            "Name all tensors of a unit in its group."
        )
    return next(iter(lengths.values()))


def settings_of_edit(model: nn.Module, edit: Narrow) -> dict[tuple[str, str], Any]:
    """Return the new attribute values of a group, by path of the module and name.

    A module's attribute may count further units: only the removed units' part is subtracted. A config entry, shared by
    layers that are narrowed in turn, becomes the kept units' part.

    Args:
        model: Network before the edit.
        edit: Edit with the removed units.

    Raises:
        ValueError: If an attribute is missing or does not count the units.
    """
    _check_heads_follow(model, edit)
    return {(setting.module, setting.attribute): _followed(model, setting, edit) for setting in edit.settings}


def _followed(model: nn.Module, setting: Setting, edit: Narrow) -> Any:
    holder, name = holder_of(get_module(model, setting.module), setting.attribute)
    in_config = holder is not get_module(model, setting.module)
    value, whole, left = getattr(holder, name), setting.per_unit * edit.of, setting.per_unit * len(edit.keep)
    count = alone(value)
    if setting.power != 1:
        counts = isinstance(value, float) and math.isclose(value, setting.value(edit.of), rel_tol=1e-5)
    else:
        counts = isinstance(count, int) and not isinstance(count, bool) and (in_config or count >= whole)
    if not counts:
        power = "" if setting.power == 1 else f", to the power of {setting.power:g}"
        raise ValueError(
            f"Expected '{setting.attribute}' of '{setting.module}' to count {edit.of} units of {setting.per_unit}"
            f"{power}, but got {value}. Was the plan made for another model, or was '{edit.unit}' narrowed before?"
        )
    if setting.power != 1:
        return setting.value(len(edit.keep))
    return like(value, left if in_config else count - (whole - left))


def _check_heads_follow(model: nn.Module, edit: Narrow) -> None:
    """Raise ValueError if an attention that loses heads would still count all of them."""
    if edit.kind != "head":
        return
    told = {(setting.module, setting.attribute) for setting in edit.settings}
    layers = dict.fromkeys(parent_path(part.tensor) for part in edit.group)
    tables = {layer for layer in layers if isinstance(get_module(model, layer), nn.Embedding)}  # position biases
    itself = {layer for layer in layers if isinstance(get_module(model, layer), nn.MultiheadAttention)}
    holders = (layer if layer in itself else parent_path(layer) for layer in layers if layer not in tables)
    for path in dict.fromkeys(holders):
        for name, count in vars(get_module(model, path)).items():
            counts = name in (*HEADS, *KEY_VALUE_HEADS) and type(count) is int and count and count % edit.of == 0
            if counts and (path, name) not in told:
                raise ValueError(
                    f"Expected the edit of '{edit.unit}' to set '{name}' of '{path}', which counts its {edit.of} "
                    "heads, but it does not. Was the plan edited?"
                )


def settings_without_fusion(model: nn.Module, paths: Iterable[str]) -> list[tuple[str, str, Any]]:
    """Return the settings that make PyTorch's own encoders call their parts separately.

    The fused kernel of a whole layer would read weights of removed parts.

    Args:
        model: Network without wrappers.
        paths: Paths of the replaced parts.

    Returns:
        Path of a module, name of an attribute, and value.
    """
    above = {path[:end] for path in paths for end, letter in enumerate(path) if letter == "."} | {""}
    found: list[tuple[str, str, Any]] = []
    for path in sorted(above):
        module = get_module(model, path)
        if isinstance(module, nn.TransformerEncoderLayer):
            found.append((path, "activation_relu_or_gelu", 0))
        elif isinstance(module, nn.TransformerEncoder):
            found.append((path, "use_nested_tensor", False))
    return found
