"""Widths after a plan: kept units per group, in the names and sizes of the dense model.

A plan may narrow a group several times, remove blocks before and after, and list untouched groups in the evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prunerecover.plan.edits import Edit, Narrow, Remove
from prunerecover.plan.evidence import WidthEvidence
from prunerecover.plan.kinds import WidthKind
from prunerecover.plan.removed_units import DenseNames

GroupKey = tuple[str, str]  # name in the dense model, and kind


@dataclass(frozen=True)
class KeptGroup:
    """A group before and after a plan.

    Attributes:
        name: Name in the dense model.
        kind: Kind of the units.
        kept: Number of kept units.
        size: Number of units in the dense model.
        followed: Number of units removed only to match the widths around a removed layer.
    """

    name: str
    kind: WidthKind
    kept: int
    size: int
    followed: int = 0

    @property
    def share(self) -> float:
        """Share of kept units."""
        return self.kept / self.size


def kept_groups(edits: Iterable[Edit], evidence: Mapping[str, Any]) -> tuple[KeptGroup, ...]:
    """List the groups of a plan: in order of depth, or at least of the edits if the evidence has no list.

    Groups inside removed units are left out.

    Args:
        edits: Edits of the plan.
        evidence: Evidence of the plan; `WidthEvidence` lists the groups.

    >>> narrow = {"unit": "fc1", "kind": "neuron", "group": ()}
    >>> edits = [Narrow(of=of, keep=tuple(range(of - 1)), **narrow) for of in (4, 3)]
    >>> kept_groups(edits, {})
    (KeptGroup(name='fc1', kind='neuron', kept=2, size=4, followed=0),)
    """
    names, found_by = DenseNames(), WidthEvidence.of(evidence)
    found: dict[GroupKey, KeptGroup] = {}
    listed: dict[GroupKey, KeptGroup] = {}
    gone: list[str] = []
    for edit in edits:
        if isinstance(edit, Narrow):
            name = names.dense_name(edit.unit)
            found[name, edit.kind] = _narrowed(found.get((name, edit.kind)), name, edit)
            listed = _listed(found_by, names)  # with names from the planning of the last part of the plan
        elif isinstance(edit, Remove):
            gone.append(names.dense_name(edit.unit))
            if edit.kind == "block":
                names.remove_block(gone[-1])
    groups = [found.get(key, listed.get(key)) for key in _in_order(list(listed), list(found))]
    return tuple(g for g in groups if g and not any(f"{g.name}.".startswith(f"{unit}.") for unit in gone))


def _narrowed(before: KeptGroup | None, name: str, edit: Narrow) -> KeptGroup:
    """Return a group after an edit.

    Args:
        before: Group before the edit; None: the dense group.
        name: Name in the dense model.
        edit: Edit to narrow the group.
    """
    kept, size, followed = len(edit.keep), edit.of, len(edit.gone) if edit.serves else 0
    if before is None:
        return KeptGroup(name, edit.kind, kept, size, followed)
    if before.kept == edit.of:
        return KeptGroup(name, edit.kind, kept, before.size, before.followed + followed)
    # Other channels of the same module: it makes two groups, and each in turn has the name of the module.
    return KeptGroup(name, edit.kind, before.kept + kept, before.size + size, before.followed + followed)


def _in_order(listed: list[GroupKey], narrowed: list[GroupKey]) -> list[GroupKey]:
    """Return the listed groups in order, with unlisted (exhausted) groups behind the predecessor in the edits."""
    place = 0
    for key in narrowed:
        if key not in listed:
            listed.insert(place, key)
        place = listed.index(key) + 1
    return listed


def _listed(evidence: WidthEvidence, names: DenseNames) -> dict[GroupKey, KeptGroup]:
    """Return the groups in the evidence, at full size."""
    kinds = evidence.kinds
    sizes = {name: size for name, (_, size) in evidence.kept.items() if name in kinds}
    groups = [KeptGroup(names.dense_name(name), kinds[name], size, size) for name, size in sizes.items()]
    return {(group.name, group.kind): group for group in groups}
