"""Naive narrowing: tensors cut by the slices, or writers of a unit set to zero."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from cases.width import masks
from cases.width.masks import Mask
from torch import Tensor, nn

from prunerecover.model.narrow.freeing import free_heads
from prunerecover.model.paths import get_module
from prunerecover.plan.groups import Group
from prunerecover.width.groups.found import FoundGroups
from prunerecover.width.rewrites.padded_shortcuts import as_convolutions

Keep = Mapping[Group, Tensor]


def thirty_percent(found: FoundGroups, seed: int = 0) -> dict[Group, Tensor]:
    """Keep about 70% of the units of every group at random, but always remove and keep at least one."""
    generator = torch.Generator().manual_seed(seed)
    keep = {}
    for group in found.groups:
        removed = min(max(1, round(0.3 * group.size)), group.size - 1)
        keep[group] = torch.randperm(group.size, generator=generator)[removed:].sort().values
    return keep


def rewritten(model: nn.Module, found: FoundGroups) -> nn.Module:
    """Copy a model, with convolutions for padded shortcuts, and attentions with removable heads."""
    new = copy.deepcopy(model)
    as_convolutions(new, found.rewrites)
    free_heads(new, found.attentions)
    return new


def narrowed(model: nn.Module, found: FoundGroups, keep: Keep) -> nn.Module:
    """Copy a model with only the units in `keep`."""
    new = rewritten(model, found)
    stays: dict[tuple[str, int], Tensor] = {}
    for group, units in keep.items():
        gone = torch.tensor([u for u in range(group.size) if u not in units.tolist()])
        for part in group.slices:
            size = _tensor(new, part.tensor).shape[part.dim]
            stays.setdefault((part.tensor, part.dim), torch.ones(size, dtype=torch.bool))[part.indices(gone)] = False
    for (name, dim), mask in stays.items():
        tensor = _tensor(new, name)
        with torch.no_grad():
            tensor.data = tensor.data.index_select(dim, mask.nonzero().flatten())
    for group, units in keep.items():
        for setting in group.settings:
            holder, lost = get_module(new, setting.module), setting.per_unit * (group.size - len(units))
            setattr(holder, setting.attribute, getattr(holder, setting.attribute) - lost)
    for module in new.modules():
        _sync(module)
    return new


def masked(model: nn.Module, found: FoundGroups, keep: Keep) -> nn.Module:
    """Copy a model and set all writers of a removed unit to zero."""
    new = rewritten(model, found)
    with torch.no_grad():
        for group, units in keep.items():
            gone = torch.tensor([u for u in range(group.size) if u not in units.tolist()])
            for part in group.slices:
                if part.makes:
                    _tensor(new, part.tensor).index_fill_(part.dim, part.indices(gone), 0)
    return new


def silenced(model: nn.Module, keep: Keep) -> AbstractContextManager[None]:
    """Set removed units to zero at their taps."""
    found = []
    for group, units in keep.items():
        gone = torch.tensor([u for u in range(group.size) if u not in units.tolist()])
        for tap in group.taps:
            index = tap.offset + (gone[:, None] * tap.span + torch.arange(tap.span)).flatten()
            found.append(Mask(tap.module, tap.dim, tuple(index.tolist()), tap.of))
    return masks.silenced(model, tuple(found))


def _tensor(model: nn.Module, path: str) -> Tensor:
    parent, _, name = path.rpartition(".")
    return getattr(get_module(model, parent), name)


def _sync(module: nn.Module) -> None:
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        if module.groups > 1 and weight.shape[1] == 1 and module.groups == module.in_channels:
            module.groups = weight.shape[0] * module.groups // module.out_channels
        sizes = weight.shape[0], weight.shape[1] * module.groups
        module.in_channels, module.out_channels = sizes if module.transposed else sizes[::-1]
    elif isinstance(module, nn.LayerNorm):
        module.normalized_shape = tuple(weight.shape)
    elif hasattr(module, "nf"):
        module.nf = weight.shape[1]
