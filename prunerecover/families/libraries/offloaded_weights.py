"""Weights offloaded by accelerate: mapped into memory from their files.

accelerate copies the weights of a module to a device before the module runs, and drops them afterwards. A surgery reads
weights outside of such runs, too. Mapped weights are ordinary CPU tensors: the operating system reads a page of a file
when its values are used, and drops the page when memory is needed, so that models larger than the memory are planned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.hooks import (  # type: ignore[import-untyped]
    AlignDevicesHook,
    ModelHook,
    SequentialHook,
    add_hook_to_module,
    remove_hook_from_module,
)
from accelerate.utils import OffloadedWeightsLoader, PrefixedDataset, named_module_tensors  # type: ignore[import-untyped]
from torch import Tensor, nn

from prunerecover.model.copies import OFFLOADING, like

STORED = {
    "bfloat16": "int16",
    "float8_e4m3fn": "int8",
    "float8_e5m2": "int8",
}  # unknown to NumPy


def is_offloaded(model: nn.Module) -> bool:
    """Whether accelerate holds weights of a model in the memory of the CPU or on disk, outside the modules."""
    return any(isinstance(hook, AlignDevicesHook) and hook.offload for _, hook in _hooks(model))


def map_offloaded(model: nn.Module) -> None:
    """Give a model with offloaded weights all its weights on the CPU, in place; accelerate's hooks go.

    A model without offloaded weights stays unchanged.

    Offloaded weights are shared with accelerate where they are in memory, and mapped from their files where they are on
    disk. Weights on other devices are copied to the CPU. Not covered: weights on disk that are tied in a model without
    `tie_weights`; accelerate writes a file for each.

    Args:
        model: Model dispatched by accelerate, or a copy with shared tensors.
    """
    if not is_offloaded(model):
        return
    found: dict[int, Tensor] = {}
    for module, hook in _hooks(model):
        if isinstance(hook, AlignDevicesHook) and hook.offload:
            own = named_module_tensors(module, include_buffers=True, recurse=hook.place_submodules)
            found |= {id(tensor): _mapped(hook.weights_map, name) for name, tensor in own if tensor.is_meta}
    for module in {module: None for module, _ in _hooks(model)}:
        add_hook_to_module(module, ModelHook())  # which does nothing; the removal of the others would read all weights
        remove_hook_from_module(module)
    new, seen = dict[int, Any](), dict[tuple[Any, ...], Tensor]()
    for tensor in (*model.parameters(), *model.buffers()):
        value = found.get(id(tensor), tensor.detach()).to("cpu")
        place = value.data_ptr() or id(tensor), value.shape, value.stride(), type(tensor)
        new[id(tensor)] = seen.setdefault(place, like(tensor, value))  # tied weights stay one
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            held.update({name: new[id(tensor)] for name, tensor in held.items() if tensor is not None})
    vars(model).pop("hf_device_map", None)
    tie = getattr(model, "tie_weights", None)
    if callable(tie):  # accelerate separates tied weights
        tie()


def _hooks(model: nn.Module) -> list[tuple[nn.Module, ModelHook]]:
    """Return accelerate's hooks with their modules."""
    held = [(module, getattr(module, OFFLOADING)) for module in model.modules() if hasattr(module, OFFLOADING)]
    return [(module, one) for module, hook in held for one in _one_by_one(hook)]


def _one_by_one(hook: ModelHook) -> list[ModelHook]:
    return [one for part in hook.hooks for one in _one_by_one(part)] if isinstance(hook, SequentialHook) else [hook]


def _mapped(weights: Any, name: str) -> Tensor:
    """Return a tensor of accelerate's weights without a copy of its values."""
    while isinstance(weights, PrefixedDataset):
        weights, name = weights.dataset, weights.prefix + name
    if isinstance(weights, OffloadedWeightsLoader) and name not in weights.state_dict:
        about = weights.index[name]
        if about.get("safetensors_file") is None and about["shape"]:
            path, shape = Path(weights.save_folder) / f"{name}.dat", tuple(about["shape"])
            stored = "int16" if about["dtype"] == "bfloat16" else about["dtype"]
            values = np.memmap(path, "int8" if stored.startswith("float8_") else stored, "c", shape=shape)
            return torch.from_numpy(values).view(getattr(torch, about["dtype"]))
    found: Tensor = weights[name]
    return found
