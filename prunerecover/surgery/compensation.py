"""Fitted values: what replacements hold, what weights become, and what weights that read a group take over.

A weight takes over what removed units did as far as the kept ones predict it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from prunerecover.plan.edits import PARAMETERS, Bypass, Narrow, Refit, Replace
from prunerecover.plan.groups import Slice
from prunerecover.plan.kinds import WidthKind


def absorb(
    weight: Tensor, bias: Tensor | None, part: Slice, edit: Narrow, matrix: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return a reading weight and its bias with the removed units' part added to the kept ones'.

    Args:
        weight: `(out, in, ...)`, as it is before it is cut.
        bias: `(out,)` or None.
        part: The group's entries in it.
        edit: Which units go.
        matrix: `(gone, kept + 1)`, of `fit_compensation`.
    """
    per_unit = entries_per_unit(edit.kind, part)
    matrix = matrix.to(weight.device, torch.float32)
    gone, kept = (entry_indices(units, per_unit).to(weight.device) for units in (edit.gone, edit.keep))
    length = edit.of * part.span
    read = weight.detach().float().narrow(1, part.offsets[0], length)
    blocks = torch.unflatten(read, 1, (edit.of * per_unit, -1))
    lost = blocks[:, gone]
    blocks = blocks.clone()
    blocks[:, kept] += torch.einsum("og...,gk->ok...", lost, matrix[:, :-1])
    new = weight.detach().clone()
    new.narrow(1, part.offsets[0], length).copy_(blocks.flatten(1, 2))
    if bias is None:
        return new, None
    constant = torch.einsum("og...,g->o...", lost, matrix[:, -1]).flatten(1).sum(1)
    return new, (bias.detach() + constant.to(bias.dtype))


def stand_in_values(edit: Replace | Bypass, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Return the fitted values of what stands in for a unit, by the names of its parameters.

    Args:
        edit: Names the keys.
        tensors: By key. None: only the structure is wanted; nothing is returned.

    Raises:
        ValueError: If the keys are not those of such a stand-in.
    """
    named = [key.rpartition(".")[2] for key in edit.tensors]
    if tensors is None:
        return {}
    if named and sorted(named) != sorted(PARAMETERS[edit.leaves]):
        raise ValueError(
            f"Expected keys of the fitted {', '.join(PARAMETERS[edit.leaves])} of '{edit.unit}', but got "
            f"{', '.join(edit.tensors)}. Was the plan edited?"
        )
    return {name: tensors[key] for name, key in zip(named, edit.tensors, strict=True)}


def refitted_values(module: nn.Module, edit: Refit, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Return what parameters of a module become, by name.

    Args:
        module: Its module; not changed.
        edit: Names the parameters, and the keys of their values.
        tensors: By key. None: only the structure is wanted, which stays; nothing is returned.

    Raises:
        ValueError: If the module has no such parameter of its own, or one of another shape.
    """
    own = {name: parameter for name, parameter in module._parameters.items() if parameter is not None}
    missing = [name for name in edit.names if name not in own]
    if missing:
        raise ValueError(
            f"Expected '{edit.unit}' ({type(module).__name__}) to hold {', '.join(missing)} itself, but it holds "
            f"{', '.join(own) or 'no parameters'}. Was the plan made for another model?"
        )
    values = {} if tensors is None else {name: tensors[key] for name, key in zip(edit.names, edit.tensors, strict=True)}
    for name, value in values.items():
        if value.shape != own[name].shape:
            raise ValueError(
                f"Expected a tensor of shape {tuple(own[name].shape)} for the {name} of '{edit.unit}', but got "
                f"{tuple(value.shape)}. Does the .safetensors file belong to the plan?"
            )
    return values


def entries_per_unit(kind: WidthKind, part: Slice) -> int:
    """Return the entries of a unit that are predicted one by one: those of a head.

    A channel of a flattened map has as many entries as positions, which all follow one prediction.
    """
    return part.span if kind == "head" else 1


def entry_indices(units: Sequence[int], per_unit: int) -> Tensor:
    """Return the indices of the entries of some units, `(units * per_unit,)`, where each unit has so many in a row."""
    return Slice(tensor="", dim=0, span=per_unit).indices(torch.tensor(units, dtype=torch.long))
