"""Removal of a group's units from the tensors, for `executors`; `apply_edits` takes back failures.

Checks come before changes. A tensor shared by several names stays a single tensor, and several slices may cut the same
tensor: along different dimensions, or in different parts of a concatenation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from prunerecover.model.narrow.freeing import FREED
from prunerecover.model.narrow.when_used import when_used
from prunerecover.model.paths import get_module, parent_path
from prunerecover.plan.edits import FreeHeads, Narrow
from prunerecover.plan.groups import Slice
from prunerecover.surgery.compensation import absorb, entries_per_unit
from prunerecover.surgery.journal import Journal
from prunerecover.surgery.module_sizes import check_norm_groups, settings_of_edit, settings_without_fusion, sizes_of
from prunerecover.surgery.routing import check_routing

STRIDED = {4: torch.channels_last, 5: torch.channels_last_3d}
TensorHolder = tuple[str, str]  # path of a module, name in it


@dataclass(frozen=True)
class Cut:
    """Remaining entries of a tensor along a dimension.

    Attributes:
        dim: Number of the dimension.
        kept: Indices, ascending, on the CPU.
    """

    dim: int
    kept: Tensor

    def of(self, tensor: Tensor) -> Tensor:
        """Return a copy of the remaining entries, in the tensor's memory format.

        >>> Cut(0, torch.tensor([0, 2])).of(torch.tensor([5, 6, 7]))
        tensor([5, 7])
        """
        new = tensor.detach().index_select(self.dim, self.kept.to(tensor.device))
        layout = STRIDED.get(tensor.ndim)
        if layout is not None and tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous():
            return new.contiguous(memory_format=layout)
        return new


Cuts = tuple[Cut, ...]


def narrow(
    model: nn.Module,
    edit: Narrow,
    journal: Journal,
    compensation: Mapping[str, Tensor] | None = None,
    *,
    to_read: bool = False,
) -> dict[Parameter, tuple[Parameter, Cuts]]:
    """Remove the units from the model that the edit does not keep.

    Args:
        model: Network without wrappers.
        edit: Edit with the kept units.
        journal: Journal for the changes.
        compensation: Matrices for reading weights, by the path of the weight; see `compensation`.
        to_read: Whether the network is only read: large tensors are cut when used, and take no memory.

    Returns:
        New parameters, each with the old parameter that was cut, and the cuts.

    Raises:
        ValueError: If a tensor or attribute is missing, or a size does not fit; the model is unchanged then.
    """
    edit.check()
    found = _cuts(model, edit)
    check_routing(model, edit)
    places = places_of(model, found)
    attributes = {**_sizes(model, places, found), **settings_of_edit(model, edit)}
    for path in {path for path, _ in attributes}:
        own = {name: value for (where, name), value in attributes.items() if where == path}
        check_norm_groups(path, get_module(model, path), own)
    if not edit.gone:
        return {}
    values, biases = _compensated(model, edit, compensation or {})
    for bias, _ in biases:
        found.setdefault(id(bias), (bias, ()))  # a bias that makes units of the group is cut besides
    places = places_of(model, found)
    values |= {id(bias): value for bias, value in biases}
    made: dict[Parameter, tuple[Parameter, Cuts]] = {}
    for key, (old, cuts) in found.items():
        new = _cut(old, cuts, values.get(key), to_read=to_read)
        journal.replace(model, places[key], new)
        if isinstance(old, Parameter) and isinstance(new, Parameter):
            made[new] = (old, cuts)
    for (path, name), value in attributes.items():
        journal.set_attribute(model, path, name, value)
    return made


def free_heads(model: nn.Module, edit: FreeHeads, journal: Journal) -> None:
    """Let an attention's heads keep the head size, and make PyTorch's encoders call the attention, not a fused kernel.

    Args:
        model: Network without wrappers.
        edit: Edit with the path of the attention.
        journal: Journal for the changes.

    Raises:
        ValueError: If the module is no attention of a class in `FREED`.
    """
    attention = get_module(model, edit.unit)
    if type(attention) not in FREED:
        raise ValueError(
            f"Expected '{edit.unit}' to be one of {', '.join(own.__name__ for own in FREED)}, but it is a "
            f"{type(attention).__name__}. Was the plan applied before, or made for another model?"
        )
    journal.set_attribute(model, edit.unit, "__class__", FREED[type(attention)])
    for path, attribute, value in settings_without_fusion(model, [edit.unit]):
        journal.set_attribute(model, path, attribute, value)


def _compensated(
    model: nn.Module, edit: Narrow, compensation: Mapping[str, Tensor]
) -> tuple[dict[int, Tensor], list[tuple[Tensor, Tensor]]]:
    """Return values of reading weights before the cut, by identity, and biases with new values."""
    values: dict[int, Tensor] = {}
    biases: list[tuple[Tensor, Tensor]] = []
    for path, matrix in compensation.items():
        part = next((part for part in edit.group if part.tensor == path and not part.makes), None)
        if part is None:
            raise ValueError(
                f"Expected the fitted tensors of '{edit.unit}' to be for weights that read its units, but '{path}' is "
                "not among them. Was the plan edited?"
            )
        per_unit = entries_per_unit(edit.kind, part)
        shape = (len(edit.gone) * per_unit, len(edit.keep) * per_unit + 1)
        if matrix.shape != shape:
            raise ValueError(
                f"Expected the tensor for '{path}' to say what it takes over from '{edit.unit}', of shape {shape}, but "
                f"got {tuple(matrix.shape)}. Does the .safetensors file belong to the plan?"
            )
        weight, bias = _tensor_at(model, path), getattr(get_module(model, parent_path(path)), "bias", None)
        values[id(weight)], new = absorb(weight, bias, part, edit, matrix)
        if bias is not None and new is not None:
            biases.append((bias, new))
    return values, biases


def _cut(old: Tensor, cuts: Cuts, value: Tensor | None = None, *, to_read: bool = False) -> Tensor:
    before = (old if value is None else value).detach()

    def of_cuts() -> Tensor:
        return reduce(lambda tensor, cut: cut.of(tensor), cuts, before)

    later = to_read and value is None and cuts and old.ndim not in STRIDED
    new = when_used(of_cuts, _shape(old, cuts), old) if later else of_cuts()
    return Parameter(new, requires_grad=old.requires_grad) if isinstance(old, Parameter) else new


def _cuts(model: nn.Module, edit: Narrow) -> dict[int, tuple[Tensor, Cuts]]:
    """Return the tensors that lose entries, by identity, each with a cut per dimension."""
    tensors: dict[int, Tensor] = {}
    named: dict[tuple[int, int], list[Slice]] = defaultdict(list)
    for part in edit.group:
        tensor = _tensor_at(model, part.tensor)
        _check_range(tensor, part, edit)
        tensors[id(tensor)] = tensor
        named[id(tensor), part.dim].append(part)
    cuts: dict[int, list[Cut]] = defaultdict(list)
    for (key, dim), parts in sorted(named.items()):
        _check_apart(parts, edit)
        stays = torch.ones(tensors[key].shape[dim], dtype=torch.bool)
        for part in parts:
            stays[part.indices(torch.tensor(edit.gone, dtype=torch.long))] = False
        cuts[key].append(Cut(dim, stays.nonzero().flatten()))
    return {key: (tensors[key], tuple(cuts[key])) for key in tensors}


def _tensor_at(model: nn.Module, path: str) -> Tensor:
    parent, _, name = path.rpartition(".")
    module = get_module(model, parent)
    tensor: Tensor | None = module._parameters.get(name)
    tensor = module._buffers.get(name) if tensor is None else tensor
    if tensor is None:
        raise ValueError(
            f"Expected a parameter or buffer at '{path}', but {parent or 'the model'} ({type(module).__name__}) has "
            f"none called '{name}'. Was the plan made for another model?"
        )
    return tensor


def _check_range(tensor: Tensor, part: Slice, edit: Narrow) -> None:
    if not 0 <= part.dim < tensor.ndim:
        raise ValueError(
            f"Expected a dimension of '{part.tensor}' {tuple(tensor.shape)}, but '{edit.unit}' names {part.dim}. "
            "Was the plan made for another model?"
        )
    size, last = tensor.shape[part.dim], max(part.offsets, default=-1) + edit.of * part.span
    if part.span < 1 or min(part.offsets, default=-1) < 0 or last > size:
        raise ValueError(
            f"Expected {edit.of} units of {part.span} in '{part.tensor}' {tuple(tensor.shape)} along dimension "
            f"{part.dim} from {list(part.offsets)} on, but they do not fit. Was the plan made for another model, or "
            f"was '{edit.unit}' narrowed before?"
        )


def _check_apart(parts: list[Slice], edit: Narrow) -> None:
    """Raise ValueError for overlapping parts of a tensor, unless two names mean the same part."""
    ranges = sorted({(offset, offset + edit.of * part.span, part.span) for part in parts for offset in part.offsets})
    for (start, stop, _), (later, *_) in pairwise(ranges):
        if later < stop:
            raise ValueError(
                f"Expected the parts of '{parts[0].tensor}' that '{edit.unit}' names along dimension {parts[0].dim} to "
                f"lie apart, but one begins at {later}, inside the one from {start} to {stop - 1}."
            )


def places_of(model: nn.Module, found: Collection[int]) -> dict[int, list[TensorHolder]]:
    """Return every place of each tensor, by identity: tied tensors have several."""
    places: dict[int, list[TensorHolder]] = {key: [] for key in found}
    for path, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if id(tensor) in found:
                places[id(tensor)].append((path, name))
    return places


def _sizes(
    model: nn.Module, places: Mapping[int, list[TensorHolder]], found: Mapping[int, tuple[Tensor, Cuts]]
) -> dict[TensorHolder, Any]:
    """Return the size attributes, after the cuts, of all modules with any of the tensors."""
    changed: dict[str, dict[str, Cuts]] = defaultdict(dict)
    for key, where in places.items():
        for path, name in where:
            changed[path][name] = found[key][1]
    sizes: dict[TensorHolder, Any] = {}
    for path, cuts in changed.items():
        module = get_module(model, path)
        held = {n: t for n, t in (*module._parameters.items(), *module._buffers.items()) if t is not None}
        shapes = {name: _shape(tensor, cuts.get(name, ())) for name, tensor in held.items()}
        rows = next((cut.kept for cut in cuts.get("weight", ()) if cut.dim == 0), None)
        for name, value in sizes_of(path, module, shapes, rows).items():
            sizes[path, name] = value
    return sizes


def _shape(tensor: Tensor, cuts: Cuts) -> tuple[int, ...]:
    lengths = {cut.dim: len(cut.kept) for cut in cuts}
    return tuple(lengths.get(dim, size) for dim, size in enumerate(tensor.shape))
