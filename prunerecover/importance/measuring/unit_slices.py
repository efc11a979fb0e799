"""Slices of tensors by the units of a group: weights summed per unit, activations and gates laid out by unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from prunerecover.model.paths import get_module
from prunerecover.plan.groups import Group, Slice, Tap

Scores = dict[str, Tensor]  # by group name: `(size,)`, float64, on the CPU


def made_parameters(model: nn.Module, groups: Sequence[Group]) -> dict[str, Parameter]:
    """Return the parameters that make the units of any group, by path; buffers are left out.

    Raises:
        ValueError: If the model lacks a tensor of a group.
    """
    names = dict.fromkeys(s.tensor for group in groups for s in group.slices if s.makes)
    found = {name: tensor_named(model, name) for name in names}
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, Parameter)}


def tensor_named(model: nn.Module, path: str) -> Tensor:
    """Return the parameter or buffer at `path`.

    Raises:
        ValueError: If the model has neither there.
    """
    module, _, name = path.rpartition(".")
    owner = get_module(model, module)
    tensor = getattr(owner, name, None)
    if not isinstance(tensor, Tensor):
        raise ValueError(
            f"Expected a parameter or buffer '{path}', as the groups say, but {module or 'the model'} "
            f"({type(owner).__name__}) has none. Were the groups found in another model?"
        )
    return tensor


def sum_per_unit(group: Group, values: Mapping[str, Tensor]) -> Tensor:
    """Add up, per unit, the entries that make the unit.

    Args:
        group: Group with the slices of each unit.
        values: Numbers per weight, by the path of the parameter; missing paths add nothing.

    Returns:
        `(size,)`, float64, on the CPU.
    """
    total = torch.zeros(group.size, dtype=torch.float64)
    for part in group.slices:
        if part.makes and part.tensor in values:
            total += _along_units(values[part.tensor], part, group.size).cpu()
    return total


def _along_units(values: Tensor, part: Slice, size: int) -> Tensor:
    dim = part.dim % values.ndim
    others = [d for d in range(values.ndim) if d != dim]
    along = values.sum(others, dtype=torch.float64) if others else values.double()
    length = size * part.span
    return torch.stack([along.narrow(0, o, length).view(size, part.span).sum(1) for o in part.offsets]).sum(0)


def check_names(groups: Sequence[Group]) -> None:
    """Raise ValueError if two groups share a name: entries kept by name would be mixed up."""
    seen: dict[str, Group] = {}
    for group in groups:
        other = seen.setdefault(group.name, group)
        if other is not group:
            raise ValueError(
                f"Expected groups of different names, but '{group.name}' names a group of kind '{other.kind}' and one "
                f"of kind '{group.kind}'. Treat one kind at a time."
            )


def units_of(tensor: Tensor, tap: Tap, size: int, n: int) -> Tensor:
    """Arrange activations as `(n, size, entries per unit)`; the rows of a sample, such as windows, become entries.

    Args:
        tensor: Activations at a tap.
        tap: Layout of units and samples in the activations.
        size: Number of units.
        n: Number of samples.

    >>> units_of(torch.zeros(2, 5, 12), Tap("qkv", dim=-1, offset=4, span=2), size=3, n=2).shape
    torch.Size([2, 3, 10])
    """
    dim = tap.dim % tensor.ndim
    units = torch.unflatten(tensor.narrow(dim, tap.offset, size * tap.span), dim, (size, tap.span))
    rows = units.movedim(tap.samples + (tap.samples > dim), 0)
    dim += tap.samples > dim
    apart = torch.unflatten(rows, 0, (-1, n)).transpose(0, 1) if tap.apart else torch.unflatten(rows, 0, (n, -1))
    return apart.movedim(dim + 1, 1).flatten(2)


def spread(gate: Tensor, tensor: Tensor, tap: Tap, size: int) -> Tensor:
    """Lay gates, `(rows, one or more per unit)`, over the units' entries of `tensor`, with ones elsewhere."""
    dim = tap.dim % tensor.ndim
    after = tensor.shape[dim] - tap.offset - size * tap.span
    entries = size * tap.span // gate.shape[1]
    inside = gate if entries == 1 else gate.repeat_interleave(entries, 1)
    if tap.offset or after:
        rows = gate.shape[0]
        inside = torch.cat([gate.new_ones(rows, tap.offset), inside, gate.new_ones(rows, after)], 1)
    shape = [1] * tensor.ndim
    shape[tap.samples], shape[dim] = inside.shape
    return (inside if tap.samples < dim else inside.t()).reshape(shape)
