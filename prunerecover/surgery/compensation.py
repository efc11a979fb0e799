"""Fitted values of replacements, of refitted weights, and of the readers of a narrowed group.

A reading weight takes over the effect of removed units as far as the kept units predict it.
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
    """Return a reading weight and the bias, with the part of the removed units added to the kept units'.

    Args:
        weight: Weight `(out, in, ...)` before the cut.
        bias: Bias `(out,)` or None.
        part: Entries of the group in the weight.
        edit: Edit with the removed units.
        matrix: Prediction of removed from kept entries, `(removed, kept + 1)`, from `fit_compensation`.
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
    """Return the fitted values of a replacement, by parameter name.

    Args:
        edit: Edit that names the keys.
        tensors: Values by key. None: only the structure is made, and the result is empty.

    Raises:
        ValueError: If the keys do not belong to the replacement.
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
    """Return the new values of a module's parameters, by name.

    Args:
        module: Module of the edit; not changed.
        edit: Edit with the names of the parameters and the keys of the values.
        tensors: Values by key. None: only the structure is made, and the result is empty.

    Raises:
        ValueError: If a parameter is not the module's own, or has another shape.
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
    """Return the number of separately predicted entries of a unit: the head size, else 1.

    A channel of a flattened map has as many entries as positions; a single prediction serves all.
    """
    return part.span if kind == "head" else 1


def entry_indices(units: Sequence[int], per_unit: int) -> Tensor:
    """Return the indices of the entries of units, `(units * per_unit,)`, with `per_unit` adjacent entries each."""
    return Slice(tensor="", dim=0, span=per_unit).indices(torch.tensor(units, dtype=torch.long))
