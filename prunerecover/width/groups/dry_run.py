"""Try groups out on a copy: narrow all of them a little, by different numbers, and look whether the copy still runs.

What a forward pass ties together does not tell where its code has sizes written out (`x.view(n, 12, 64)`). Narrowed,
such code fails, or its dimensions come out in other proportions; then the groups it concerns are left out. The copy
must also run in training mode, if the model does: auxiliary heads are called there alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import evaluating
from prunerecover.model.paths import get_module, parent_path
from prunerecover.plan.groups import Group
from prunerecover.width.tracing.tracer import trace_model

TensorDim = tuple[str, int]
LEAST_LOST, MOST_LOST = 2, 4  # units of a group that shares no tensor, in the first trial


def that_narrow(model: nn.Module, inputs: ModelInputs, groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return those of `groups` that can be narrowed together, each by a number of its own.

    If not all can, they are tried by families: those of one kind in modules of one class.

    Args:
        model: A copy whose shortcuts are rewritten; it is left as it was.
        inputs: One batch.
        groups: All groups found in the model.
    """
    survivors = _that_survive(model, inputs, groups)
    if survivors is not None:
        return survivors
    families: dict[tuple[str, ...], list[Group]] = defaultdict(list)
    for group in groups:
        families[group.kind, type(get_module(model, parent_path(group.name))).__name__].append(group)
    kept: set[Group] = set()
    for family in families.values():
        members = _that_survive(model, inputs, family)
        if members is None:
            members = _one_by_one(model, inputs, family)
        kept.update(_that_survive(model, inputs, [g for g in groups if g in kept or g in members]) or kept)
    return tuple(group for group in groups if group in kept)


def _one_by_one(model: nn.Module, inputs: ModelInputs, family: Sequence[Group]) -> tuple[Group, ...]:
    """Try each group alone; attentions of one class have one code, so a single one speaks for all."""
    if family[0].kind == "head" and not _that_survive(model, inputs, family[:1]):
        return ()
    return tuple(group for group in family if _that_survive(model, inputs, (group,)))


def _that_survive(model: nn.Module, inputs: ModelInputs, groups: Sequence[Group]) -> tuple[Group, ...] | None:
    """Narrow all groups and watch again: None if the copy does not run, else those whose units are what they were."""
    survivors: tuple[Group, ...] | None = tuple(groups)
    for kept in _trials(groups):
        found = _survivors(model, inputs, kept)
        survivors = None if found is None or survivors is None else tuple(g for g in survivors if g in found)
        if survivors is None:
            return None
    return survivors


def _survivors(model: nn.Module, inputs: ModelInputs, kept: Mapping[Group, int]) -> set[Group] | None:
    """Return those of the groups whose units are what they were, narrowed to so many; None: the copy does not run."""
    stays = _positions_that_stay(model, kept)
    try:
        narrowed = _narrow_copy(model, kept, stays)
        trace = trace_model(narrowed, inputs)
    except Exception:  # whatever code raises when its sizes do not fit
        return None
    if not _trains(narrowed, inputs) and _trains(model, inputs):
        return None
    component = trace.ids.components()
    sizes = np.bincount(component)
    starts = {(owner.tensor, owner.dim): owner.start for owner in trace.ids.owners}
    return {g for g in kept if _intact(g, kept[g], stays, component, sizes, starts)}


def _trains(model: nn.Module, inputs: ModelInputs) -> bool:
    """Whether a forward pass in training mode succeeds; nothing of it is left behind."""
    with evaluating(model):
        model.train()
        try:
            call(model, inputs)
        except Exception:  # targets are missing, one sample is too few, or sizes do not fit
            return False
    return True


def _numbers(groups: Sequence[Group]) -> dict[Group, int]:
    """How many units each group keeps: neighbours lose other numbers, and those that share a tensor ever fewer.

    A tensor that code cuts in halves may come out right by accident: with the first half larger by one, or equal. So
    each group loses two at least, and a later part of the same tensor less than an earlier one. Two heads stay: of a
    single one it could not be seen that it is one.
    """
    return {group: max(group.size - lost, _least(group)) for group, lost in _losses(groups).items()}


def _trials(groups: Sequence[Group]) -> list[dict[Group, int]]:
    """Return how many units each group keeps in one trial, or in two if small groups of one size come out alike in it.

    In the second they lose none, one and so on, in turn; a single head is not left, for it would fit by broadcasting.
    """
    first = _numbers(groups)
    small = [g for g, lost in _losses(groups).items() if g.size - max(lost, MOST_LOST) < _least(g)]
    if all(count == 1 for count in Counter((g.kind, g.size, first[g]) for g in small).values()):
        return [first]
    second, ranks = dict(first), Counter[tuple[str, int]]()
    for group in small:
        second[group] = group.size - ranks[group.kind, group.size] % (group.size - _least(group) + 1)
        ranks[group.kind, group.size] += 1
    return [first, second]


def _least(group: Group) -> int:
    return 2 if group.kind == "head" and group.size > 2 else 1


def _losses(groups: Sequence[Group]) -> dict[Group, int]:
    """Return how many units each group loses if it has as many to give."""
    places = [[(part.tensor, part.dim) for part in group.slices if part.makes] for group in groups]
    total = Counter(place for own in places for place in own)
    seen: Counter[TensorDim] = Counter()
    losses: dict[Group, int] = {}
    for i, group in enumerate(groups):
        seen.update(places[i])
        sharing = max(total[place] for place in places[i]) > 1
        cycle = i % (MOST_LOST - LEAST_LOST + 1)
        losses[group] = LEAST_LOST + (max(total[p] - seen[p] for p in places[i]) if sharing else cycle)
    return losses


def _positions_that_stay(model: nn.Module, kept: Mapping[Group, int]) -> dict[TensorDim, np.ndarray]:
    """For each dimension that is narrowed, whether each index stays, when each group keeps its first units."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    stays: dict[TensorDim, np.ndarray] = {}
    for group, units in kept.items():
        removed = torch.arange(units, group.size)
        for part in group.slices:
            mask = stays.setdefault((part.tensor, part.dim), np.ones(tensors[part.tensor].shape[part.dim], dtype=bool))
            mask[part.indices(removed).numpy()] = False
    return stays


def _intact(
    group: Group,
    units: int,
    stays: Mapping[TensorDim, np.ndarray],
    component: np.ndarray,
    sizes: np.ndarray,
    starts: Mapping[TensorDim, int],
) -> bool:
    """Whether each unit still is one free set of tied ids, with all its entries and no others.

    A single unit that is left cannot be told from a fixed size, so that it runs must do.
    """
    if units == 1:
        return True
    rows = []
    for part in group.slices:
        place = part.tensor, part.dim
        if place in starts:  # a dimension of one index has no ids
            position = np.cumsum(stays[place]) - 1
            within = np.add.outer(np.array(part.offsets), np.arange(part.span)).flatten()
            old = np.add.outer(np.arange(units) * part.span, within)
            rows.append(component[starts[place] + position[old]])
    table = np.concatenate(rows, axis=1)
    first = table[:, 0]
    whole = bool((table == first[:, None]).all() and (sizes[first] == table.shape[1]).all())
    return whole and bool(first.all()) and len(set(first.tolist())) == units


def _narrow_copy(model: nn.Module, kept: Mapping[Group, int], stays: Mapping[TensorDim, np.ndarray]) -> nn.Module:
    """Copy a model with fewer units; what is not narrowed is shared."""
    twin = share_copy(model)
    tensors: dict[str, Tensor] = {**dict(twin.named_parameters()), **dict(twin.named_buffers())}
    new = {name: tensors[name].detach() for name, _ in stays}
    for (name, dim), mask in stays.items():
        index = torch.from_numpy(mask.nonzero()[0]).to(new[name].device)
        new[name] = new[name].index_select(dim, index)
    by_identity = {id(tensors[name]): _like(tensors[name], value) for name, value in new.items()}
    for module in twin.modules():
        for held in (module._parameters, module._buffers):
            held.update({name: by_identity.get(id(tensor), tensor) for name, tensor in held.items()})  # type: ignore[misc]
    for group, units in kept.items():
        for setting in group.settings:
            setattr(get_module(twin, setting.module), setting.attribute, setting.per_unit * units)
    for module in twin.modules():
        _follow(module)
    return twin


def _like(tensor: Tensor, value: Tensor) -> Tensor:
    return nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value


def _follow(module: Any) -> None:
    """Set the sizes that forward passes of common layers read."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        return
    if isinstance(module, nn.modules.conv._ConvNd):
        if 1 < module.groups == module.in_channels:
            module.groups = weight.shape[0] // (module.out_channels // module.groups)
        sizes = weight.shape[0], weight.shape[1] * module.groups
        module.in_channels, module.out_channels = sizes if module.transposed else sizes[::-1]
    elif isinstance(module, nn.LayerNorm):
        module.normalized_shape = tuple(weight.shape)
    elif hasattr(module, "nf"):  # the transposed linear of GPT-2
        module.nf = weight.shape[1]
