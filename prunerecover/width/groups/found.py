"""Groups of a network together with what is known besides: what stays and why, and what must be edited first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from prunerecover.graph.trace import Traced
from prunerecover.model.arguments import matches
from prunerecover.model.paths import parent_path
from prunerecover.plan.edits import FreeHeads, Rewrite
from prunerecover.plan.groups import Group, Slice
from prunerecover.refusal import Stay
from prunerecover.width.groups.counted import CountedGroup
from prunerecover.width.rewrites.padded_shortcuts import PaddedShortcut

FREEING = ("head", "head_dim", "hidden")  # kinds whose number is part of the size of a head in some attentions


@dataclass(frozen=True)
class FoundGroups:
    """Groups, and what is known besides.

    Attributes:
        groups: In order of depth.
        rewrites: Shortcuts that must become convolutions first; slices name their weights as if they were already.
        attentions: Paths of those that must become a module whose heads can go first.
        counted: Groups that stay because an operation counts their units, apart from those that are ignored.
        linked: Groups that lie in equal parts of one tensor (`x.chunk(2, 1)`): those of a tuple must lose equally many
            units. None of them is among `groups`.
        others: Groups of kinds that were not asked for.
        failed: Groups that cannot be narrowed, and how code fails then.
        tied: Groups whose units do not go one by one, as a trial has shown.
        sized: Reasons why heads keep their size, where sizes of heads were looked for.
        traced: What the forward pass showed, for as long as reasons may be asked for.
    """

    groups: tuple[Group, ...] = ()
    rewrites: tuple[PaddedShortcut, ...] = ()
    counted: tuple[CountedGroup, ...] = ()
    linked: tuple[tuple[Group, ...], ...] = ()
    attentions: tuple[str, ...] = ()
    others: tuple[Group, ...] = field(default=(), compare=False)
    failed: Mapping[Group, str] = field(default_factory=dict, compare=False, repr=False)
    tied: tuple[Group, ...] = field(default=(), compare=False, repr=False)
    sized: tuple[Stay, ...] = field(default=(), compare=False, repr=False)
    traced: Traced | None = field(default=None, compare=False, repr=False)

    @property
    def named(self) -> tuple[Group, ...]:
        """All groups that `ignore` may name."""
        return (*self.groups, *chain(*self.linked), *(one.group for one in self.counted))

    @property
    def edits(self) -> tuple[Rewrite | FreeHeads, ...]:
        """What must be done to the model before any of its groups is narrowed."""
        shortcuts = (
            Rewrite(unit=s.path, in_channels=s.in_channels, out_channels=s.out_channels, stride=s.stride, first=s.first)
            for s in self.rewrites
        )
        return (*shortcuts, *(FreeHeads(unit=path) for path in self.attentions))

    def of_kinds(self, kinds: Sequence[str]) -> FoundGroups:
        """Return what is known of groups of some kinds; those of all others are `others`."""
        every = (*self.groups, *self.others)
        return replace(
            self,
            groups=tuple(group for group in every if group.kind in kinds),
            others=tuple(group for group in every if group.kind not in kinds),
            linked=tuple(one for one in self.linked if all(group.kind in kinds for group in one)),
            counted=tuple(one for one in self.counted if one.group.kind in kinds),
        )

    def without_freed_heads(self) -> FoundGroups:
        """Return the same without units for which an attention must become another module."""
        kept = (g for g in self.groups if not freed_for([(g.kind, g.slices)], self.attentions))
        return replace(self, groups=tuple(kept), attentions=(), traced=None)


def freed_for(narrowed: Iterable[tuple[str, Sequence[Slice]]], attentions: Sequence[str]) -> tuple[str, ...]:
    """Return which of some attentions must become other modules before units can go, and in which order.

    Args:
        narrowed: Kinds of units, and their entries, in tensors of attentions or of their children.
        attentions: Paths.
    """
    holders = {parent_path(part.tensor) for kind, parts in narrowed if kind in FREEING for part in parts}
    holders |= {parent_path(path) for path in holders}
    return tuple(path for path in attentions if path in holders)


def without(found: FoundGroups, ignore: Sequence[str]) -> FoundGroups:
    """Return what was found without the groups that stay, and what these alone need.

    Args:
        found: Groups that there are.
        ignore: Shell patterns of names of those that stay.
    """
    kept = tuple(group for group in found.groups if not matches(group.name, ignore))
    linked = tuple(one for one in found.linked if not any(matches(group.name, ignore) for group in one))
    counted = tuple(one for one in found.counted if not matches(one.group.name, ignore))
    tensors = {part.tensor for group in chain(kept, *linked) for part in group.slices}
    return replace(
        found,
        groups=kept,
        linked=linked,
        counted=counted,
        rewrites=tuple(shortcut for shortcut in found.rewrites if f"{shortcut.path}.weight" in tensors),
        attentions=freed_for(((group.kind, group.slices) for group in kept), found.attentions),
    )
