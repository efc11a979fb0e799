"""Edits of removed units: one `narrow` per group, with tensors named as after the earlier edits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from prunerecover.plan.edits import Narrow
from prunerecover.plan.groups import Group, Setting, Slice
from prunerecover.width.groups.assembly import linear_form


def narrow_edits(groups: Sequence[Group], removed: Mapping[str, Tensor]) -> tuple[Narrow, ...]:
    """Return the edits that remove units from groups.

    Groups in one dimension, as in a concatenation, lie in consecutive stretches: after a removal, the stretches behind
    begin earlier. Heads and head dimensions share entries: after the removal of heads, fewer stretches hold a
    dimension, and after the removal of dimensions, a head has fewer entries.

    Args:
        groups: Groups in the order of narrowing.
        removed: Numbers of removed units `(k,)` by group name; groups without a name here keep all units.
    """
    return edits_without((group, removed[group.name].long()) for group in groups if group.name in removed)


def edits_without(removed: Iterable[tuple[Group, Tensor]]) -> tuple[Narrow, ...]:
    """Return the edits that remove units `(k,)` from groups, perhaps of equal names; see `narrow_edits`."""
    edits: list[Narrow] = []
    gone: dict[tuple[str, int], list[Tensor]] = {}  # indices along a dimension, numbered before the first edit
    for group, units in removed:
        if not len(units):
            continue
        moved = [_moved(part, group.size, gone.get((part.tensor, part.dim), [])) for part in group.slices]
        leaving = set(units.tolist())
        edits.append(
            Narrow(
                unit=group.name,
                kind=group.kind,
                of=group.size,
                keep=tuple(u for u in range(group.size) if u not in leaving),
                group=tuple(moved),
                settings=_followed(group, moved, edits),
            )
        )
        for part in group.slices:
            gone.setdefault((part.tensor, part.dim), []).append(part.indices(units))
    return tuple(edits)


def _moved(part: Slice, size: int, gone: Sequence[Tensor]) -> Slice:
    """Return the slice of a unit's entries after the removal of entries, perhaps of the slice itself."""
    if not gone:
        return part
    indices = torch.unique(torch.cat(list(gone)))
    own = part.indices(torch.arange(size))
    if not torch.isin(own, indices).any():
        offsets = tuple(offset - int((indices < offset).sum()) for offset in part.offsets)
        return part.model_copy(update={"offsets": offsets})
    unit_of = torch.full((int(max(own.max(), indices.max())) + 1,), -1)
    for unit in range(size):
        unit_of[part.indices(torch.tensor([unit]))] = unit
    unit_of[indices] = -2
    form = linear_form(unit_of[unit_of > -2].numpy(), size)
    assert form is not None, "heads lose equally many dimensions"
    return part.model_copy(update={"offsets": form[0], "span": form[1]})


def _followed(group: Group, moved: Sequence[Slice], before: Sequence[Narrow]) -> tuple[Setting, ...]:
    """Return a group's settings; a setting shared with earlier edits counts the remaining entries of each unit."""
    shared = {(one.module, one.attribute) for edit in before for one in edit.settings}
    entries, left = (parts[0].span * len(parts[0].offsets) for parts in (group.slices, moved))
    return tuple(
        one.model_copy(update={"per_unit": one.per_unit * left // entries})
        if left < entries and (one.module, one.attribute) in shared
        else one
        for one in group.settings
    )
