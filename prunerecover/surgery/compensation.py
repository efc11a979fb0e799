"""Let weights that read a group take over what its removed units did, as far as the kept ones predict it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from prunerecover.plan.edits import Narrow
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


def entries_per_unit(kind: WidthKind, part: Slice) -> int:
    """Return the entries of a unit that are predicted one by one: those of a head.

    A channel of a flattened map has as many entries as positions, which all follow one prediction.
    """
    return part.span if kind == "head" else 1


def entry_indices(units: Sequence[int], per_unit: int) -> Tensor:
    """Return the indices of the entries of some units, `(units * per_unit,)`, where each unit has so many in a row."""
    return Slice(tensor="", dim=0, span=per_unit).indices(torch.tensor(units, dtype=torch.long))
