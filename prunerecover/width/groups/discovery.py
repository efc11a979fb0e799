"""Find what can be narrowed in nearly any model: channels, heads, neurons and routed experts, as groups.

One forward pass is traced (`graph.trace`). Indices of parameters that it ties together are units; units with the same
shape are a group (`assembly`), which is tried out on a copy (`dry_run`). Nothing depends on class names; attributes
that count heads are known by theirs.

That units come in coupled groups, and where from, is DepGraph's idea (arXiv 2301.12900). Its graph joins layers, and
takes unknown operations for element-wise ones; here single indices are tied, so that concatenations, flattened maps,
fused projections and grouped heads need no special cases, and what is not understood stays as it is.

Routed experts are not found by watching, for which of them are visited depends on the data, but by structure: see
`experts`. They are asked for by name.

Not units, besides: those that an operation counts (a mean over channels that is no norm, a division by their number),
for a network with fewer of them would compute something else than with some set to zero; `FoundGroups.counted` lists
them. And the model's outputs, and heads in code that computes their size from the width.

The features of residual streams that norms or attentions read (a transformer's hidden size) are asked for by name, too.
Their norms take statistics over those that stay, so to remove one is not to set it to zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from itertools import chain
from typing import Any

from torch import nn

from prunerecover.display.progress import progress
from prunerecover.display.summary import Summarised, Summary
from prunerecover.graph.trace import trace
from prunerecover.model.batches import ModelInputs, as_inputs, without_labels
from prunerecover.model.checks import called_with
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import device_of, evaluating, ordinary_arithmetic, uncompiled
from prunerecover.model.narrow.freeing import attentions_in, free_heads
from prunerecover.model.paths import parent_path, unwrap
from prunerecover.plan.edits import FreeHeads, Rewrite
from prunerecover.plan.groups import Group, Groups, Slice
from prunerecover.plan.kinds import WIDTH_KINDS
from prunerecover.width.groups.assembly import assemble
from prunerecover.width.groups.counted import CountedGroup
from prunerecover.width.groups.dry_run import try_out
from prunerecover.width.groups.experts import find_experts
from prunerecover.width.groups.refusals import counting, nothing_found, reasons
from prunerecover.width.rewrites.padded_shortcuts import PaddedShortcut, as_convolutions, find_padded_shortcuts

FOUND_KINDS = ("channel", "head", "neuron")
FREEING = ("head", "hidden")  # kinds whose number is part of the size of a head in some attentions


@dataclass(frozen=True)
class FoundGroups(Summarised):
    """What can be narrowed.

    Attributes:
        groups: In order of depth.
        rewrites: Shortcuts that must become convolutions first; slices name their weights as if they were already.
        attentions: Paths of those that must become a module whose heads can go first.
        counted: Groups that stay because an operation counts their units, apart from those that are ignored.
        linked: Groups that lie in equal parts of one tensor (`x.chunk(2, 1)`): those of a tuple must lose equally many
            units. None of them is among `groups`.
    """

    groups: tuple[Group, ...]
    rewrites: tuple[PaddedShortcut, ...] = ()
    counted: tuple[CountedGroup, ...] = ()
    linked: tuple[tuple[Group, ...], ...] = ()
    attentions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Have the groups show themselves as a list."""
        object.__setattr__(self, "groups", Groups(self.groups))

    def summary(self) -> Summary:
        """Return that of its groups."""
        return Groups(self.groups).summary()

    @property
    def edits(self) -> tuple[Rewrite | FreeHeads, ...]:
        """What must be done to the model before any of its groups is narrowed."""
        shortcuts = (
            Rewrite(unit=s.path, in_channels=s.in_channels, out_channels=s.out_channels, stride=s.stride, first=s.first)
            for s in self.rewrites
        )
        return (*shortcuts, *(FreeHeads(unit=path) for path in self.attentions))

    def without_freed_heads(self) -> FoundGroups:
        """Return the same without units for which an attention must become another module."""
        kept = (g for g in self.groups if not freed_for([(g.kind, g.slices)], self.attentions))
        return replace(self, groups=tuple(kept), attentions=())


def freed_for(narrowed: Iterable[tuple[str, Sequence[Slice]]], attentions: Sequence[str]) -> tuple[str, ...]:
    """Return which of some attentions must become other modules before units can go, and in which order.

    Args:
        narrowed: Kinds of units, and their entries, in tensors of attentions or of their children.
        attentions: Paths.
    """
    holders = {parent_path(part.tensor) for kind, parts in narrowed if kind in FREEING for part in parts}
    holders |= {parent_path(path) for path in holders}
    return tuple(path for path in attentions if path in holders)


@ordinary_arithmetic()
def find_groups(
    model: nn.Module, example_inputs: Any, kinds: Sequence[str] = FOUND_KINDS, ignore: str | Sequence[str] = ()
) -> FoundGroups:
    """Find the groups of a model.

    `nn.MultiheadAttention` computes the size of a head from `embed_dim`, and torchvision's Swin from the width of the
    stream, so one whose heads may go must become a `NarrowAttention` or `NarrowWindowAttention` first
    (`FoundGroups.attentions`). Subclasses keep their heads.

    Args:
        model: Any module, wrapped or not; it is bit-identical afterwards.
        example_inputs: One batch, of any form that calibration batches have; labels are not read.
        kinds: Among "channel", "head", "neuron", "expert" and "hidden".
        ignore: Shell patterns of names of groups that stay, such as "layer4.*".

    Raises:
        ValueError: If a kind is unknown, the model cannot run the example, there is no group of these kinds, or a
            pattern matches none.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [(group.name, group.size) for group in find_groups(net, torch.zeros(1, 4)).groups]
    [('0', 8)]
    """
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    check_kinds(kinds)
    model = unwrap(model)
    experts = find_experts(model)
    watched = (
        _Watched()
        if set(kinds) == {"expert"}
        else _watch(model, as_inputs(without_labels(example_inputs, model)), hidden="hidden" in kinds)
    )
    found = (*watched.groups, *experts)
    groups = tuple(group for group in found if group.kind in kinds)
    linked = tuple(one for one in watched.linked if all(group.kind in kinds for group in one))
    counted = tuple(one for one in watched.counted if one.group.kind in kinds)
    if not groups and not linked:
        raise nothing_found(model, kinds, found, watched.why(kinds), counted)
    ignore = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    kept, together = _without_ignored(groups, linked, counted, ignore)
    tensors = {part.tensor for group in chain(kept, *together) for part in group.slices}
    return FoundGroups(
        kept,
        tuple(r for r in watched.rewrites if f"{r.path}.weight" in tensors),
        tuple(one for one in counted if not _ignored(one.group, ignore)),
        together,
        freed_for(((group.kind, group.slices) for group in kept), watched.attentions),
    )


def check_kinds(kinds: Sequence[str]) -> None:
    """Raise ValueError if a kind is unknown."""
    for kind in kinds:
        if kind not in WIDTH_KINDS:
            raise ValueError(f"Expected kinds among {', '.join(WIDTH_KINDS)}, but got '{kind}'.")


@dataclass(frozen=True)
class _Watched:
    """What a forward pass showed."""

    groups: tuple[Group, ...] = ()
    rewrites: tuple[PaddedShortcut, ...] = ()
    why: Callable[[Sequence[str]], tuple[str, ...]] = lambda kinds: ()
    counted: tuple[CountedGroup, ...] = ()
    linked: tuple[tuple[Group, ...], ...] = ()
    attentions: tuple[str, ...] = ()


def _watch(model: nn.Module, inputs: ModelInputs, *, hidden: bool) -> _Watched:
    inputs = inputs.to(device_of(model))
    with progress("tracing the network"), uncompiled(), evaluating(model):
        # In evaluation mode, for in training parametrizations change whenever they are read.
        twin = share_copy(model)
        with called_with(model, "example_inputs", inputs):
            rewrites = find_padded_shortcuts(twin, inputs)
        as_convolutions(twin, rewrites)
        attentions = attentions_in(twin)
        free_heads(twin, attentions)
        traced = trace(twin, inputs)
        found = assemble(traced, hidden=hidden)
        linked = tuple(together for together in found.linked if all(map(_is_plain, together)))
        tried = try_out(traced, tuple(filter(_is_plain, found.groups)), linked)
    counted = (*found.counted, *tried.counted)
    return _Watched(
        tried.groups, rewrites, partial(reasons, traced, failed=tried.failed), counted, tried.linked, attentions
    )


def _is_plain(group: Group) -> bool:
    """Whether none of a group's weights is computed by a parametrization, whose tensors have sizes of their own."""
    return not any(".parametrizations." in f".{part.tensor}" for part in group.slices)


def _without_ignored(
    groups: tuple[Group, ...],
    linked: tuple[tuple[Group, ...], ...],
    counted: Sequence[CountedGroup],
    ignore: Sequence[str],
) -> tuple[tuple[Group, ...], tuple[tuple[Group, ...], ...]]:
    named = [*groups, *chain(*linked), *(one.group for one in counted)]
    for pattern in ignore:
        if not any(fnmatch(group.name, pattern) for group in named):
            raise ValueError(
                f"Expected argument ignore to match groups such as {named[0].name}, but '{pattern}' matches none. "
                "Group names are those of the first module that makes the units."
            )
    kept = tuple(group for group in groups if not _ignored(group, ignore))
    together = tuple(one for one in linked if not any(_ignored(group, ignore) for group in one))
    if not kept and not together:
        left = [one for one in counted if not _ignored(one.group, ignore)]
        ignored = len(named) - len(left)
        raise ValueError(
            f"Expected some groups outside ignore={list(ignore)}, but all {ignored} are ignored."
            f"{counting(left) if left else ''}"
        )
    return kept, together


def _ignored(group: Group, patterns: Sequence[str]) -> bool:
    return any(fnmatch(group.name, pattern) for pattern in patterns)
