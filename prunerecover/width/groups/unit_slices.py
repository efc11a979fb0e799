"""Slices of tensors summed and ordered per unit of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from prunerecover.model.paths import get_module
from prunerecover.plan.groups import Group, Slice

Scores = dict[str, Tensor]  # by group name: `(size,)`, float64, on the CPU


def made_parameters(model: nn.Module, groups: Sequence[Group]) -> dict[str, Parameter]:
    """Return the parameters, by path, that make the units of any group; buffers are left out.

    Raises:
        ValueError: If the model has no tensor of a name.
    """
    names = dict.fromkeys(s.tensor for group in groups for s in group.slices if s.makes)
    found = {name: tensor_named(model, name) for name in names}
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, Parameter)}


def tensor_named(model: nn.Module, path: str) -> Tensor:
    """Return the parameter or buffer at `path`.

    Raises:
        ValueError: If there is none.
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
    """Add up, per unit, the entries that make it.

    Args:
        group: Says which entries.
        values: One number per weight, by the path of the parameter; paths that are missing add nothing.

    Returns:
        `(size,)`, float64, on the CPU.
    """
    total = torch.zeros(group.size, dtype=torch.float64)
    for part in group.slices:
        if part.makes and part.tensor in values:
            total += _along_units(values[part.tensor], part, group.size).cpu()
    return total


def removal_order(group: Group, scores: Tensor) -> Tensor:
    """Return the numbers of all units, lowest score first; strata take turns, so that they give up equally many.

    >>> removal_order(Group("moe", "expert", 4, (), multiple=2, strata=2), torch.tensor([0.0, 1.0, 3.0, 2.0]))
    tensor([0, 3, 1, 2])
    """
    within = scores.view(group.strata, -1).argsort(dim=1, stable=True)
    starts = torch.arange(0, group.size, group.size // group.strata)
    return (within + starts[:, None]).T.flatten()


def removal_positions(groups: Sequence[Group], scores: Scores) -> Scores:
    """Return, by group, each unit's place in the order in which units go: scores by which strata need no turns.

    >>> moe = Group("moe", "expert", 4, (), multiple=2, strata=2)
    >>> removal_positions([moe], {"moe": torch.tensor([0.0, 1.0, 3.0, 2.0])})
    {'moe': tensor([0, 2, 3, 1])}
    """
    return {group.name: removal_order(group, scores[group.name]).argsort() for group in groups}


def _along_units(values: Tensor, part: Slice, size: int) -> Tensor:
    dim = part.dim % values.ndim
    others = [d for d in range(values.ndim) if d != dim]
    along = values.sum(others, dtype=torch.float64) if others else values.double()
    length = size * part.span
    return torch.stack([along.narrow(0, o, length).view(size, part.span).sum(1) for o in part.offsets]).sum(0)


def check_names(groups: Sequence[Group]) -> None:
    """Raise ValueError if two groups share a name: what is kept by name would be mixed up."""
    seen: dict[str, Group] = {}
    for group in groups:
        other = seen.setdefault(group.name, group)
        if other is not group:
            raise ValueError(
                f"Expected groups of different names, but '{group.name}' names a group of kind '{other.kind}' and one "
                f"of kind '{group.kind}'. Treat one kind at a time."
            )
