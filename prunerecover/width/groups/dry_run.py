"""Trials of groups on a copy: all groups a little narrower, by different numbers, in a copy that must still run.

The ties of a forward pass do not show fixed sizes in the code (`x.view(n, 12, 64)`). Code with fixed sizes fails when
narrowed, or dimensions come out in other proportions; the groups involved are left out. Groups with a size as a factor
or divisor are left out, too: a narrowed network must compute the result of the dense network with the same units at
zero, and the number would change the result (`numbers` separates sizes from numbers of the data). The copy must also
run in training mode if the model does, for auxiliary heads, and with a cache, the default of decoders, as cached states
may have the sizes of a config. Tensors must be cut apart at the same units (`equal_parts`): code that cuts a tensor in
halves runs on unequal halves, but computes another result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import torch
from torch import nn

from prunerecover.graph.dimensions.ties import Arithmetic, Ties
from prunerecover.graph.trace import Traced, trace_ties
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.evaluation import evaluating
from prunerecover.model.key_values import asking_for_cache
from prunerecover.model.paths import get_module, parent_path
from prunerecover.plan.groups import Group
from prunerecover.width.groups.equal_parts import units_that_moved
from prunerecover.width.groups.found import CountedGroup, FoundGroups, named_operation
from prunerecover.width.groups.numbers import arithmetic_of, changed_numbers, data_numbers, same_numbers
from prunerecover.width.groups.trials import (
    Stays,
    in_whole_strata,
    later_in_tensor,
    linked_sizes,
    masked_copy,
    narrow_copy,
    other_sizes,
    positions_that_stay,
    reweighted_copies,
    trial_sizes,
    units_left,
    units_that_stay,
)

LONGEST = 100  # characters of an error message


def try_out(dense: Traced, groups: Sequence[Group], linked: Sequence[tuple[Group, ...]]) -> FoundGroups:
    """Return the groups narrowable together by different numbers, and the linked groups by equal numbers.

    If a trial of all groups fails, groups are tried by families: groups of a kind in modules of a class.

    Args:
        dense: Trace of a forward pass of a copy with rewritten shortcuts; the copy is left unchanged.
        groups: All groups of the model outside `linked`.
        linked: Tuples of groups with equal numbers of lost units.
    """
    trials = _Trials(dense.model, dense.inputs, dense.ties)
    kept = trials.that_narrow(groups)
    counted = tuple(CountedGroup(g, trials.counted[g]) for g in groups if g in trials.counted and g not in kept)
    together = trials.that_narrow_linked(linked, kept)
    return FoundGroups(kept, linked=together, counted=counted, failed=trials.failed)


@dataclass
class _Trials:
    """Narrowed copies of a model.

    Attributes:
        model: Traced copy of the network.
        inputs: Inputs of the forward passes.
        dense: Ties of the dense network.
        counted: Counting operations of groups tried alone.
        failed: Errors of groups tried alone.
        found: Result of each trial.
    """

    model: nn.Module
    inputs: ModelInputs
    dense: Ties
    counted: dict[Group, str] = field(default_factory=dict)
    failed: dict[Group, str] = field(default_factory=dict)
    found: dict[tuple[Group, ...], tuple[Group, ...] | None] = field(default_factory=dict)

    def that_narrow(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """Return the groups narrowable together."""
        survivors = self._that_survive(groups)
        if survivors is not None:
            return survivors
        families: dict[tuple[str, ...], list[Group]] = defaultdict(list)
        for group in groups:
            families[group.kind, type(get_module(self.model, parent_path(group.name))).__name__].append(group)
        kept: set[Group] = set()
        for family in families.values():
            members = self._that_survive(family)
            if members is None:
                members = self._that_narrow_alone(family)
            kept.update(self._that_survive([g for g in groups if g in kept or g in members]) or kept)
        return tuple(group for group in groups if group in kept)

    def that_narrow_linked(
        self, linked: Sequence[tuple[Group, ...]], others: Sequence[Group]
    ) -> tuple[tuple[Group, ...], ...]:
        """Return the linked groups narrowable together beside further groups: all of a tuple, or none."""
        found: tuple[tuple[Group, ...], ...] = ()
        if self._do_linked(linked, others):
            return tuple(linked)
        for together in linked:
            if self._do_linked((*found, together), others):
                found = (*found, together)
        return found

    def _do_linked(self, linked: Sequence[tuple[Group, ...]], others: Sequence[Group]) -> bool:
        beside = units_left(others)
        members = {group for together in linked for group in together}
        found = (self._survivors({**beside, **kept}) for kept in linked_sizes(linked)) if linked else ()
        return all(survivors is not None and members <= survivors for survivors in found)

    def _that_narrow_alone(self, family: Sequence[Group]) -> tuple[Group, ...]:
        """Return the groups narrowable alone; attentions of a class share code: a single attention decides.

        Most groups are tried together. A group may compensate for another, or fit by chance through its number of lost
        units: trials with other numbers show both, and each group is then tried alone.
        """
        if family[0].kind == "head" and not self._that_survive(family[:1]):
            for why in (self.counted, self.failed):
                if family[0] in why:
                    why |= dict.fromkeys(family, why[family[0]])
            return ()
        alike: dict[int | None, list[Group]] = defaultdict(list)  # last parts of cut tensors, ...
        for group, later in zip(family, later_in_tensor(family), strict=True):
            alike[later].append(group)
        kept = {group for groups in alike.values() for group in self._in_runs(groups)}
        members = tuple(group for group in family if group in kept)
        if all((group,) in self.found for group in members) or self._do_whatever_goes(members):
            return members
        return tuple(group for group in members if self._that_survive((group,)))

    def _do_whatever_goes(self, groups: tuple[Group, ...]) -> bool:
        """Whether groups tried in company survive together, also with other numbers of lost units."""
        others = other_sizes(groups)
        return self._that_survive(groups) == groups and all(self._survivors(kept) == set(groups) for kept in others)

    def _in_runs(self, groups: Sequence[Group]) -> list[Group]:
        """Try groups in runs, twice as long after a success and half as long after a failure.

        Returns:
            All groups narrowable alone, and possibly some narrowable in company only.
        """
        kept: list[Group] = []
        rest, length = tuple(groups), len(groups)
        while rest:
            run, after = rest[:length], rest[length:]
            if self._that_survive(run) == run:
                kept += run
                rest, length = after, 2 * length
            elif len(run) == 1:
                rest = after
            else:
                length = len(run) // 2
        return kept

    def _that_survive(self, groups: Sequence[Group]) -> tuple[Group, ...] | None:
        """Return the groups with intact units in a narrowed copy; None if code fails or numbers change."""
        tried = tuple(groups)
        if tried not in self.found:
            self.found[tried] = self._try(tried)
        return self.found[tried]

    def _try(self, groups: tuple[Group, ...]) -> tuple[Group, ...] | None:
        survivors = groups
        for kept in trial_sizes(groups):
            found = self._survivors(kept)
            if found is None:
                return None
            survivors = tuple(group for group in survivors if group in found)
        return survivors

    def _survivors(self, kept: Mapping[Group, int]) -> set[Group] | None:
        """Return the groups with unchanged units at given sizes; None if the copy fails."""
        kept = in_whole_strata(kept)
        stays = positions_that_stay(self.model, kept)
        try:
            narrowed = narrow_copy(self.model, kept)
            ties = trace_ties(narrowed, self.inputs)
        except Exception as error:  # code may raise anything when sizes do not fit
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST]}"
            self.failed |= dict.fromkeys(kept, why) if len(kept) == 1 else {}
            return None
        if not all(_trains(narrowed, inputs) for inputs in self._in_training):
            return None
        counting = self._counting(ties.arithmetic, stays)
        if counting is not None:
            self.counted |= dict.fromkeys(kept, named_operation(counting)) if len(kept) == 1 else {}
            return None
        component = ties.ids.components()
        sizes = np.bincount(component)
        starts = {(owner.tensor, owner.dim): owner.start for owner in ties.ids.owners}
        moved = self._that_moved(kept, ties, stays)
        return {g for g in kept if g not in moved and _intact(g, kept[g], stays, component, sizes, starts)}

    def _that_moved(self, groups: Iterable[Group], narrowed: Ties, stays: Stays) -> set[Group]:
        """Return groups with units where a narrowed copy cuts a tensor at another unit than the model."""
        if not self.dense.splits:
            return set()
        units = units_that_moved(self.dense, self._component, narrowed, stays)
        return {group for group in groups if len(units) and np.isin(self._ids(group), units).any()}

    def _ids(self, group: Group) -> np.ndarray:
        """Return the components of a group in the model."""
        starts = {(owner.tensor, owner.dim): owner.start for owner in self.dense.ids.owners}
        first = group.slices[0]
        index = first.indices(torch.arange(group.size)).numpy()
        found: np.ndarray = self._component[starts[first.tensor, first.dim] + index]
        return found

    @cached_property
    def _component(self) -> np.ndarray:
        return self.dense.ids.components()

    @cached_property
    def _in_training(self) -> tuple[ModelInputs, ...]:
        """Inputs in training mode, with a request for a cache if the model trains with one; empty if training fails."""
        keeping = asking_for_cache(self.model, self.inputs)
        tried = (self.inputs,) if keeping is None else (keeping, self.inputs)
        return tuple(filter(partial(_trains, self.model), tried))[:1]

    def _counting(self, narrowed: Sequence[Arithmetic], stays: Stays) -> Arithmetic | None:
        """Return the first operation with a number that depends on units, not on data, or None."""
        if same_numbers(self.dense.arithmetic, narrowed):
            return None
        masked = arithmetic_of(masked_copy(self.model, stays), self.inputs)
        changed = changed_numbers(narrowed, masked)
        if not changed:
            return None
        others = (arithmetic_of(copy, self.inputs) for copy in reweighted_copies(self.model, stays))
        data = data_numbers(masked, (self.dense.arithmetic, *others))
        return next((narrowed[i] for i, j in changed.items() if j not in data), None)


def _trains(model: nn.Module, inputs: ModelInputs) -> bool:
    """Whether a forward pass in training mode succeeds; the model is restored."""
    with evaluating(model):
        model.train()
        try:
            call(model, inputs)
        except Exception:  # missing targets, too few samples, or sizes that do not fit
            return False
    return True


def _intact(
    group: Group,
    units: int,
    stays: Stays,
    component: np.ndarray,
    sizes: np.ndarray,
    starts: Mapping[tuple[str, int], int],
) -> bool:
    """Whether each unit is still a free set of tied ids, with all its entries and no further entries.

    A single remaining unit looks like a fixed size: a successful run is enough.
    """
    if units == 1:
        return True
    rows = []
    for part in group.slices:
        place = part.tensor, part.dim
        if place in starts:  # a dimension of a single index has no ids
            position = np.cumsum(stays[place]) - 1
            within = np.add.outer(np.array(part.offsets), np.arange(part.span)).flatten()
            old = np.add.outer(units_that_stay(group, units) * part.span, within)
            rows.append(component[starts[place] + position[old]])
    table = np.concatenate(rows, axis=1)
    first = table[:, 0]
    whole = bool((table == first[:, None]).all() and (sizes[first] == table.shape[1]).all())
    return whole and bool(first.all()) and len(set(first.tolist())) == units
