"""Edits of removed units: one `narrow` per group, each naming tensors as the ones before it leave them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from prunerecover.plan.edits import Narrow
from prunerecover.plan.groups import Group, Slice


def narrow_edits(groups: Sequence[Group], removed: Mapping[str, Tensor]) -> tuple[Narrow, ...]:
    """Return the edits that take units out of their groups.

    Groups that share a dimension, as in a concatenation, lie in stretches one after the other: once one has lost
    entries, the stretches behind it begin earlier.

    Args:
        groups: In the order in which they are narrowed.
        removed: `(k,)` unit numbers by group name; groups that are not named keep all.
    """
    edits: list[Narrow] = []
    gone: dict[tuple[str, int], list[Tensor]] = {}  # indices along a dimension, as numbered before the first edit
    for group in groups:
        units = removed.get(group.name, torch.empty(0)).long()
        if not len(units):
            continue
        moved = tuple(_moved(part, gone.get((part.tensor, part.dim), [])) for part in group.slices)
        leaving = set(units.tolist())
        edits.append(
            Narrow(
                unit=group.name,
                kind=group.kind,
                of=group.size,
                keep=tuple(u for u in range(group.size) if u not in leaving),
                group=moved,
                settings=group.settings,
            )
        )
        for part in group.slices:
            gone.setdefault((part.tensor, part.dim), []).append(part.indices(units))
    return tuple(edits)


def _moved(part: Slice, gone: Sequence[Tensor]) -> Slice:
    if not gone:
        return part
    indices = {int(index) for found in gone for index in found}
    offsets = tuple(offset - sum(index < offset for index in indices) for offset in part.offsets)
    return part.model_copy(update={"offsets": offsets})
