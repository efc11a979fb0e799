"""Variants of each site of a network, from the unchanged site to complete removal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import Tensor

from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.model.paths import is_within
from prunerecover.plan.groups import Group
from prunerecover.plan.kinds import plural
from prunerecover.plan.units import Unit
from prunerecover.width.allocation.by_importance import lowest
from prunerecover.width.allocation.greedy_fill import allowed

KEPT = tuple(n / 16 for n in range(15, 0, -1))  # of a group's units
SCORED = (3 / 4, 1 / 2, 1 / 4, 1 / 16)  # scored sizes; scores between are interpolated
HEADS = (3 / 4, 1 / 2, 1 / 4)  # of many heads that may also get smaller
HEAD_SIZES = (3 / 4, 1 / 2)  # of a head's dimensions
FEW = 8  # units: every number is a size
LEAST = 8  # dimensions of a head
DENSE = "dense"
BRANCHES = ("attention", "mlp")


@dataclass(frozen=True)
class Variant:
    """Possible state of a site.

    Attributes:
        name: Name, unique at the site.
        removed: Numbers of the removed units, by group.
        leaves: Replacement of a removed unit of depth; empty if the unit stays.
        scored: Whether the variant is scored; if not, the score is interpolated between larger and smaller variants.
    """

    name: str
    removed: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    leaves: str = ""
    scored: bool = True

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Numbers of the removed units as tensors, by group."""
        return {name: torch.tensor(units, dtype=torch.long) for name, units in self.removed.items()}


@dataclass(frozen=True)
class LibrarySite:
    """Site with its variants.

    Attributes:
        name: Name of the unit of depth, or of the group.
        kind: Kind of the unit, or of the group's units.
        unit: Unit of depth that may go, or None.
        groups: Groups of the site that may be narrowed.
        variants: Variants, the unchanged site first, then smaller and smaller variants.
    """

    name: str
    kind: str
    unit: Unit | None
    groups: tuple[Group, ...]
    variants: tuple[Variant, ...]

    def variant(self, name: str) -> Variant:
        """Return the variant of a name."""
        return next(variant for variant in self.variants if variant.name == name)

    @property
    def modules(self) -> tuple[str, ...]:
        """Paths of the modules changed by variants."""
        tensors = [part.tensor.rpartition(".")[0] for group in self.groups for part in group.slices]
        return tuple(dict.fromkeys((*(self.unit.targets if self.unit else ()), *tensors)))


def sites_of(
    units: Sequence[Unit], groups: Sequence[Group], scores: Scores, leaves: Mapping[str, Sequence[str]]
) -> tuple[LibrarySite, ...]:
    """Return the sites of a network: each attention and MLP with the groups inside, and other units and groups alone.

    Args:
        units: Units of depth that may go.
        groups: Groups that may be narrowed, with rounded sizes.
        scores: Importance of each unit of a group, by group.
        leaves: Possible replacements of each unit of depth, by the unit's name.
    """
    held: dict[str, list[Group]] = {}
    for unit in units:
        inside = [group for group in groups if unit.kind in BRANCHES and _inside(group, unit)]
        held[unit.name] = inside if len([group for group in inside if group.kind != "head_dim"]) == 1 else []
    taken = {(group.kind, group.name) for own in held.values() for group in own}
    found = [_site(unit.name, unit.kind, unit, held[unit.name], scores, leaves[unit.name]) for unit in units]
    for group in groups:
        if (group.kind, group.name) not in taken and group.kind != "head_dim":
            sizes = [own for own in groups if group.kind == "head" and own.kind == "head_dim" and _same(own, group)]
            found.append(_site(group.name, group.kind, None, [group, *sizes], scores, ()))
    return tuple(site for site in found if len(site.variants) > 1)


def containment(sites: Sequence[LibrarySite]) -> list[tuple[str, str]]:
    """Return pairs of an outer and an inner site: if the outer site changes, the inner site stays unchanged.

    A block without its own shortcut counts as outer to the groups of its input and of its output, too: without the
    block, the two have to stay equally wide.
    """
    return [
        (outer.name, inner.name)
        for outer in sites
        for inner in sites
        if outer is not inner
        and outer.unit is not None
        and (_lies_in(inner, outer.unit) or (outer.kind == "block" and _ends_at(inner, outer.unit)))
    ]


def _lies_in(site: LibrarySite, unit: Unit) -> bool:
    return all(_is_in(path, unit) for path in site.modules)


def _ends_at(site: LibrarySite, unit: Unit) -> bool:
    """Whether a group alone begins or ends in a unit; the stream of a residual block is made inside and outside."""
    for group in site.groups if site.unit is None else ():
        made_inside = {_is_in(part.tensor, unit) for part in group.slices if part.makes}
        if any(_is_in(part.tensor, unit) for part in group.slices) and made_inside != {True, False}:
            return True
    return False


def _is_in(path: str, unit: Unit) -> bool:
    return any(is_within(path, target) for target in (unit.name, *unit.targets))


def _same(one: Group, other: Group) -> bool:
    return bool({part.tensor for part in one.slices} & {part.tensor for part in other.slices})


def _inside(group: Group, unit: Unit) -> bool:
    return all(any(is_within(part.tensor, target) for target in unit.targets) for part in group.slices)


def _site(
    name: str, kind: str, unit: Unit | None, groups: Sequence[Group], scores: Scores, leaves: Sequence[str]
) -> LibrarySite:
    variants = [Variant(DENSE)]
    sizes = [_sizes(group, scores.get(group.name), coarse=len(groups) > 1) for group in groups]
    between = _between(groups)
    for chosen in product(*sizes):
        removed = {group.name: units for group, units in zip(groups, chosen, strict=True) if units}
        if removed:
            kept = [group.size - len(removed.get(group.name, ())) for group in groups]
            variants.append(Variant(_named(groups, removed), removed, scored=kept not in between))
    variants.sort(key=lambda variant: sum(map(len, variant.removed.values())))
    variants += [Variant(what, leaves=what) for what in leaves]
    return LibrarySite(name, kind, unit, tuple(groups), tuple(variants))


def _named(groups: Sequence[Group], removed: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(
        f"{group.size - len(removed[group.name])} of {group.size} {plural(group.kind)}"
        for group in groups
        if group.name in removed
    )


def _between(groups: Sequence[Group]) -> list[list[int]]:
    """Return the sizes with interpolated scores, for a single group of many units."""
    if len(groups) != 1 or groups[0].size <= FEW:
        return []
    scored = {_kept(groups[0], share) for share in SCORED}
    return [[size] for size in {_kept(groups[0], share) for share in KEPT} - scored]


def _kept(group: Group, share: float) -> int:
    return group.size - allowed(group, round((1 - share) * group.size))


def _sizes(group: Group, scores: Tensor | None, *, coarse: bool) -> list[tuple[int, ...]]:
    """Return the units removed at each size, beginning with none.

    Args:
        group: Group.
        scores: Importance of the group's units.
        coarse: Whether sizes are combined with sizes of another group, and therefore fewer.
    """
    if group.kind == "head_dim":
        sizes = {round(share * group.size / LEAST) * LEAST for share in HEAD_SIZES} - {group.size}
        return [tuple(range(size, group.size)) for size in (group.size, *sorted(sizes)[::-1]) if size > 0]
    few, shares = (FEW // 2, HEADS) if coarse else (FEW, KEPT)
    kept = range(1, group.size) if group.size <= few else [_kept(group, share) for share in shares]
    most = sorted({allowed(group, group.size - size) for size in kept} - {0})
    assert scores is not None
    taken = [lowest([group], {group.name: scores}, {group.name: count})[group.name] for count in most]
    return [(), *(tuple(units.tolist()) for units in taken)]


def holders(units: Sequence[Unit]) -> tuple[Unit, ...]:
    """Return the default units of a library: branches, or blocks without branches."""
    branches = [unit for unit in units if unit.kind in BRANCHES]
    held = {unit.block for unit in branches}
    return tuple(
        unit
        for unit in units
        if unit in branches
        or (unit.kind == "block" and unit.name not in held and not any(is_within(b.name, unit.name) for b in branches))
    )
