"""Groups of a network, with refusals, reasons, and the edits needed first.

Groups stay whole if an operation counts the units: a network that divides by the number of channels, or takes a mean
over channels, computes another result with fewer channels than with channels at zero. See `graph.dimensions.statistics`
for the counting operations, and for the exception of norms.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from prunerecover.graph.dimensions.ties import Arithmetic, Pin, Statistic
from prunerecover.graph.trace import Traced
from prunerecover.model.arguments import matches
from prunerecover.model.paths import parent_path
from prunerecover.plan.edits import FreeHeads, Rewrite
from prunerecover.plan.groups import Group, Slice
from prunerecover.refusal import Stay

FREEING = ("head", "head_dim", "hidden")  # kinds with an influence on the head size in some attentions
NAMED = 3  # groups in a warning
FIXED = "divide by a number that is fixed in __init__ to have them narrowed"


@dataclass(frozen=True)
class CountedGroup:
    """A group that stays unchanged.

    Attributes:
        group: Group with the counted units.
        operation: Name of the counting operation, for example "mean in 'attention'".
    """

    group: Group
    operation: str


@dataclass(frozen=True)
class FoundGroups:
    """Groups, refusals and reasons.

    Attributes:
        groups: Groups in order of depth.
        rewrites: Shortcuts to turn into convolutions first; slices name the weights of the future convolutions.
        attentions: Paths of attentions to replace by modules with removable heads first.
        counted: Groups to keep because an operation counts their units, without ignored groups.
        linked: Tuples of groups in equal parts of a tensor (`x.chunk(2, 1)`) that must lose equally many units;
            disjoint from `groups`.
        others: Groups of further kinds.
        failed: Groups that fail when narrowed, with the error of the code.
        tied: Groups without single removable units, according to a trial.
        sized: Reasons why heads keep their size, if sizes of heads were searched for.
        traced: Trace of the forward pass, kept as long as reasons may be asked for.
    """

    groups: tuple[Group, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()
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
        """Edits of the model before any group is narrowed."""
        return (*self.rewrites, *(FreeHeads(unit=path) for path in self.attentions))

    def of_kinds(self, kinds: Sequence[str]) -> FoundGroups:
        """Return the findings for groups of some kinds; the rest become `others`."""
        every = (*self.groups, *self.others)
        return replace(
            self,
            groups=tuple(group for group in every if group.kind in kinds),
            others=tuple(group for group in every if group.kind not in kinds),
            linked=tuple(one for one in self.linked if all(group.kind in kinds for group in one)),
            counted=tuple(one for one in self.counted if one.group.kind in kinds),
        )

    def without_freed_heads(self) -> FoundGroups:
        """Return the findings without units that need the replacement of an attention."""
        kept = (g for g in self.groups if not freed_for([(g.kind, g.slices)], self.attentions))
        return replace(self, groups=tuple(kept), attentions=(), traced=None)


def freed_for(narrowed: Iterable[tuple[str, Sequence[Slice]]], attentions: Sequence[str]) -> tuple[str, ...]:
    """Return the attentions to replace before units can be removed, in order.

    Args:
        narrowed: Kinds of units, and their entries, in tensors of attentions or of their children.
        attentions: Paths of attentions.
    """
    holders = {parent_path(part.tensor) for kind, parts in narrowed if kind in FREEING for part in parts}
    holders |= {parent_path(path) for path in holders}
    return tuple(path for path in attentions if path in holders)


def without(found: FoundGroups, ignore: Sequence[str]) -> FoundGroups:
    """Return the findings without the ignored groups and their rewrites.

    Args:
        found: Groups of the network.
        ignore: Shell patterns of names of groups to keep.
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
        rewrites=tuple(shortcut for shortcut in found.rewrites if f"{shortcut.unit}.weight" in tensors),
        attentions=freed_for(((group.kind, group.slices) for group in kept), found.attentions),
    )


def named_operation(operation: Statistic | Arithmetic | Pin) -> str:
    """Return the name of an operation, with its module.

    >>> named_operation(Arithmetic("div", "encoder.0", (8.0,)))
    "div in 'encoder.0'"
    """
    return f"{operation.operation} in {repr(operation.path) if operation.path else 'the model itself'}"


def warn_of_counted(counted: Sequence[CountedGroup]) -> None:
    """Warn of groups with counted units."""
    groups: dict[str, list[str]] = defaultdict(list)
    for found in counted:
        groups[found.operation].append(found.group.name)
    for operation, names in groups.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        warnings.warn(
            f"{', '.join(names[:NAMED])}{more}: not narrowed, because an operation ({operation}) counts the units. "
            "With fewer units the result would differ from the result with units at zero. "
            f"{FIXED.capitalize()}, or name the groups in ignore= to silence this warning.",
            stacklevel=2,
        )
