"""Copies of a model: without values, with shared values (no memory), and with values of their own.

Hooks and compiled calls stay behind, except in `hooked_copy`: both may lead back to the original, or to a trainer.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

META = torch.device("meta")
REGISTERED = ("_parameters", "_buffers", "_modules")
# transformers captures hidden states with hooks of its own, installed anew without this attribute.
CAPTURING = "_output_capturing_hooks_installed"
OFFLOADING = "_hf_hook"  # accelerate's hook, shared by copies: it holds a map of weights
MOVES = ("to", "cuda", "npu", "xpu", "mlu", "sdaa", "musa")  # accelerate's wrappers, which move the original


def meta_copy(model: nn.Module) -> nn.Module:
    """Copy a model without values: parameters and buffers are on the meta device.

    >>> meta_copy(nn.Linear(2, 3)).weight.device
    device(type='meta')
    """
    return _copy(model, lambda tensor: like(tensor, tensor.detach().to(META)))


def share_copy(model: nn.Module) -> nn.Module:
    """Copy the structure and share parameters and buffers: surgery on the copy leaves the original unchanged.

    >>> net = nn.Linear(2, 3)
    >>> share_copy(net).weight is net.weight
    True
    """
    return _copy(model, lambda tensor: tensor)


def hooked_copy(model: nn.Module) -> nn.Module:
    """Copy as in `share_copy`, with the hooks of forward passes: the copy computes the same as the model."""
    copied = share_copy(model)
    for module, twin in zip(model.modules(), copied.modules(), strict=True):
        for name, value in vars(module).items():
            if name.startswith("_forward_") and isinstance(value, dict):
                vars(twin)[name].update(value)
        if CAPTURING in vars(module):
            vars(twin)[CAPTURING] = vars(module)[CAPTURING]
    return copied


def apart_copy(model: nn.Module) -> nn.Module:
    """Copy the structure and share values, in new parameters: gradients of the copy leave the original alone.

    >>> net = nn.Linear(2, 3)
    >>> copied = apart_copy(net).weight
    >>> copied is net.weight, copied.data_ptr() == net.weight.data_ptr()
    (False, True)
    """
    return _copy(model, lambda tensor: like(tensor, tensor.detach()) if isinstance(tensor, nn.Parameter) else tensor)


def deep_copy(model: nn.Module) -> nn.Module:
    """Copy a model with its values: original and copy are independent."""
    return _copy(model, lambda tensor: like(tensor, tensor.detach().clone()))


def copy_with(model: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    """Copy as in `share_copy`, with other values of some parameters and buffers, by name; shared tensors stay shared.

    >>> net = nn.Linear(2, 2)
    >>> copied = copy_with(net, {"weight": torch.zeros(2, 2)})
    >>> bool(copied.weight.any()), copied.bias is net.bias
    (False, True)
    """
    held = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    new = {id(tensor): like(tensor, values[name]) for name, tensor in held if name in values}
    return _copy(model, lambda tensor: new.get(id(tensor), tensor))


def like(tensor: Tensor, value: Tensor) -> Tensor:
    """Return a value as a parameter, if the tensor is one."""
    return nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value


def _copy(model: nn.Module, tensor_of: Callable[[Tensor], Tensor]) -> nn.Module:
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        memo[id(tensor)] = tensor_of(tensor)
    for module in model.modules():
        for name, value in vars(module).items():
            if "hooks" in name and isinstance(value, dict):
                memo[id(value)] = OrderedDict()
            elif name == OFFLOADING:
                memo[id(value)] = value
            elif name not in REGISTERED:  # weights computed by a mask or weight_norm, and caches of modules
                computed = (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and not leaf.is_leaf)
                memo |= {id(tensor): tensor_of(tensor) for tensor in computed}
    new = copy.deepcopy(model, memo)
    for module in new.modules():
        for name in ("_compiled_call_impl", CAPTURING, *MOVES):
            vars(module).pop(name, None)
    return new
