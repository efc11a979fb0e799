"""Copies of a model for trials: the last units of groups, or of strata, removed, at zero, or reweighted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from prunerecover.model.copies import share_copy
from prunerecover.plan.groups import Group
from prunerecover.surgery.journal import Journal
from prunerecover.surgery.narrowing import narrow
from prunerecover.width.groups.narrow_edits import edits_without

TensorDim = tuple[str, int]
Stays = Mapping[TensorDim, np.ndarray]


def units_that_stay(group: Group, count: int) -> np.ndarray:
    """Return the first units of each stratum, `count` in all.

    >>> units_that_stay(Group("conv", "channel", 8, (), multiple=2, strata=2), 6)
    array([0, 1, 2, 4, 5, 6])
    """
    return np.arange(group.size).reshape(group.strata, -1)[:, : count // group.strata].flatten()


def _units_that_go(group: Group, count: int) -> Tensor:
    return torch.from_numpy(np.setdiff1d(np.arange(group.size), units_that_stay(group, count)))


def positions_that_stay(model: nn.Module, kept: Mapping[Group, int]) -> Stays:
    """Return the mask of the remaining indices of each narrowed dimension, if groups keep their first units."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    stays: dict[TensorDim, np.ndarray] = {}
    for group, units in kept.items():
        removed = _units_that_go(group, units)
        for part in group.slices:
            mask = stays.setdefault((part.tensor, part.dim), np.ones(tensors[part.tensor].shape[part.dim], dtype=bool))
            mask[part.indices(removed).numpy()] = False
    return stays


def narrow_copy(model: nn.Module, kept: Mapping[Group, int]) -> nn.Module:
    """Copy a model with fewer units; unchanged tensors are shared.

    Args:
        model: Network, left unchanged.
        kept: Number of kept units of each group.
    """
    twin, journal = share_copy(model), Journal()
    for edit in edits_without((group, _units_that_go(group, units)) for group, units in kept.items()):
        narrow(twin, edit, journal)
    return twin


def masked_copy(model: nn.Module, stays: Stays) -> nn.Module:
    """Copy a model with the same units at zero, in the weights of makers and readers.

    Args:
        model: Network, left unchanged.
        stays: Masks of `positions_that_stay`.
    """

    def zeroed(tensor: Tensor, dim: int, mask: np.ndarray) -> Tensor:
        return tensor.index_fill(dim, torch.from_numpy((~mask).nonzero()[0]).to(tensor.device), 0)

    return _copy_with(model, stays, zeroed)


def reweighted_copies(model: nn.Module, stays: Stays) -> Iterator[nn.Module]:
    """Copy a model with other weights of the same sizes: first zero, then with the opposite sign.

    Args:
        model: Network, left unchanged.
        stays: Masks of `positions_that_stay` for the tensors to change.
    """
    once = {(name, 0): mask for (name, _), mask in stays.items()}  # a tensor may have two dimensions in `stays`
    yield _copy_with(model, once, lambda tensor, *_: torch.zeros_like(tensor))
    yield _copy_with(model, once, lambda tensor, *_: -tensor)


def _copy_with(model: nn.Module, stays: Stays, changed: Callable[[Tensor, int, np.ndarray], Tensor]) -> nn.Module:
    """Copy a model with some tensors changed along their dimensions; a tensor of several names stays shared."""
    twin = share_copy(model)
    tensors: dict[str, Tensor] = {**dict(twin.named_parameters()), **dict(twin.named_buffers())}
    new = {name: tensors[name].detach() for name, _ in stays}
    for (name, dim), mask in stays.items():
        new[name] = changed(new[name], dim, mask)
    by_identity = {id(tensors[name]): _like(tensors[name], value) for name, value in new.items()}
    for module in twin.modules():
        for held in (module._parameters, module._buffers):
            held.update({name: by_identity.get(id(tensor), tensor) for name, tensor in held.items()})  # type: ignore[misc]
    return twin


def _like(tensor: Tensor, value: Tensor) -> Tensor:
    return nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value
