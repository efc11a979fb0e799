"""Widths that a plan leaves: units kept per group, in the names and sizes of the dense model.

A plan may narrow a group several times, take out blocks before and after, and say in its evidence which groups there
are that lose nothing.
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
    """A group before and after.

    Attributes:
        name: Its name in the dense model.
        kind: What its units are.
        kept: Units that stay.
        size: Units of the dense model.
        followed: Units that went because widths around a layer that goes must match.
    """

    name: str
    kind: WidthKind
    kept: int
    size: int
    followed: int = 0

    @property
    def share(self) -> float:
        """The share of the units that stays."""
        return self.kept / self.size


def kept_groups(edits: Iterable[Edit], evidence: Mapping[str, Any]) -> tuple[KeptGroup, ...]:
    """List the groups of a plan: in order of depth, or at least of the edits if its evidence does not list them.

    Groups inside something that the plan removes as a whole are left out.

    Args:
        edits: Of the plan.
        evidence: Of the plan; `WidthEvidence` lists the groups that there are.

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
            listed = _listed(found_by, names)  # as they were named when the plan's last part was made
        elif isinstance(edit, Remove):
            gone.append(names.dense_name(edit.unit))
            if edit.kind == "block":
                names.remove_block(gone[-1])
    groups = [found.get(key, listed.get(key)) for key in _in_order(list(listed), list(found))]
    return tuple(g for g in groups if g and not any(f"{g.name}.".startswith(f"{unit}.") for unit in gone))


def _narrowed(before: KeptGroup | None, name: str, edit: Narrow) -> KeptGroup:
    """Return what is left of a group after an edit.

    Args:
        before: What was left of the group before; None: all of it.
        name: In the dense model.
        edit: That narrows it.
    """
    kept, size, followed = len(edit.keep), edit.of, len(edit.gone) if edit.serves else 0
    if before is None:
        return KeptGroup(name, edit.kind, kept, size, followed)
    if before.kept == edit.of:
        return KeptGroup(name, edit.kind, kept, before.size, before.followed + followed)
    # Other channels of the same module: a module that makes two groups, of which each has its name in turn.
    return KeptGroup(name, edit.kind, before.kept + kept, before.size + size, before.followed + followed)


def _in_order(listed: list[GroupKey], narrowed: list[GroupKey]) -> list[GroupKey]:
    """Return the groups as listed, and the others, of which no unit can go any more, behind those narrowed before."""
    place = 0
    for key in narrowed:
        if key not in listed:
            listed.insert(place, key)
        place = listed.index(key) + 1
    return listed


def _listed(evidence: WidthEvidence, names: DenseNames) -> dict[GroupKey, KeptGroup]:
    """Return the groups of the evidence, as they are when nothing narrows them."""
    kinds = evidence.kinds
    sizes = {name: size for name, (_, size) in evidence.kept.items() if name in kinds}
    groups = [KeptGroup(names.dense_name(name), kinds[name], size, size) for name, size in sizes.items()]
    return {(group.name, group.kind): group for group in groups}
