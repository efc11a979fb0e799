"""Try groups out on a copy: narrow all of them a little, by different numbers, and look whether the copy still runs.

What a forward pass ties together does not tell where its code has sizes written out (`x.view(n, 12, 64)`). Narrowed,
such code fails, or its dimensions come out in other proportions; then the groups it concerns are left out. So are those
whose size becomes a factor or divisor: a narrowed network is to compute what the dense one does with the same units set
to zero, which this number would change (`numbers` tells it from those that follow the data). The copy must also run in
training mode, if the model does: auxiliary heads are called there alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.evaluation import evaluating
from prunerecover.model.paths import get_module, parent_path
from prunerecover.plan.groups import Group
from prunerecover.width.groups.counted import CountedGroup, named_operation
from prunerecover.width.groups.numbers import changed_numbers, data_numbers, same_numbers
from prunerecover.width.groups.trial_copies import (
    Stays,
    TensorDim,
    masked_copy,
    narrow_copy,
    positions_that_stay,
    reweighted_copies,
)
from prunerecover.width.tracing.trace import Arithmetic
from prunerecover.width.tracing.tracer import trace_model

LEAST_LOST, MOST_LOST = 2, 4  # units of a group that shares no tensor, in the first trial


@dataclass(frozen=True)
class Tried:
    """What came of trying groups out.

    Attributes:
        groups: That can be narrowed together.
        counted: That cannot, because an operation counts their units.
    """

    groups: tuple[Group, ...]
    counted: tuple[CountedGroup, ...] = ()


def try_out(model: nn.Module, inputs: ModelInputs, groups: Sequence[Group], dense: Sequence[Arithmetic]) -> Tried:
    """Tell which groups can be narrowed together, each by a number of its own.

    If not all can, they are tried by families: those of one kind in modules of one class.

    Args:
        model: A copy whose shortcuts are rewritten; it is left as it was.
        inputs: One batch.
        groups: All groups found in the model.
        dense: What the model computes with Python numbers.
    """
    trials = _Trials(model, inputs, dense)
    kept = trials.that_narrow(groups)
    counted = tuple(CountedGroup(g, trials.counted[g]) for g in groups if g in trials.counted and g not in kept)
    return Tried(kept, counted)


@dataclass
class _Trials:
    """Narrowed copies of one model.

    Attributes:
        counted: What counts the units of groups that were tried on their own.
    """

    model: nn.Module
    inputs: ModelInputs
    dense: Sequence[Arithmetic]
    counted: dict[Group, str] = field(default_factory=dict)

    def that_narrow(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """Return those of the groups that can be narrowed together."""
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
                members = self._one_by_one(family)
            kept.update(self._that_survive([g for g in groups if g in kept or g in members]) or kept)
        return tuple(group for group in groups if group in kept)

    def _one_by_one(self, family: Sequence[Group]) -> tuple[Group, ...]:
        """Try each group alone; attentions of one class have one code, so a single one speaks for all."""
        if family[0].kind == "head" and not self._that_survive(family[:1]):
            if family[0] in self.counted:
                self.counted |= dict.fromkeys(family, self.counted[family[0]])
            return ()
        return tuple(group for group in family if self._that_survive((group,)))

    def _that_survive(self, groups: Sequence[Group]) -> tuple[Group, ...] | None:
        """Narrow all groups and watch again: None if the copy does not do, else those whose units are what they were.

        It does not if it fails, or computes with other numbers.
        """
        survivors: tuple[Group, ...] | None = tuple(groups)
        for kept in _trials(groups):
            found = self._survivors(kept)
            survivors = None if found is None or survivors is None else tuple(g for g in survivors if g in found)
            if survivors is None:
                return None
        return survivors

    def _survivors(self, kept: Mapping[Group, int]) -> set[Group] | None:
        """Return those of the groups whose units are what they were, narrowed so far; None: the copy does not do."""
        stays = positions_that_stay(self.model, kept)
        try:
            narrowed = narrow_copy(self.model, kept, stays)
            trace = trace_model(narrowed, self.inputs)
        except Exception:  # whatever code raises when its sizes do not fit
            return None
        if not _trains(narrowed, self.inputs) and _trains(self.model, self.inputs):
            return None
        counting = self._counting(trace.arithmetic, stays)
        if counting is not None:
            self.counted |= dict.fromkeys(kept, named_operation(counting)) if len(kept) == 1 else {}
            return None
        component = trace.ids.components()
        sizes = np.bincount(component)
        starts = {(owner.tensor, owner.dim): owner.start for owner in trace.ids.owners}
        return {g for g in kept if _intact(g, kept[g], stays, component, sizes, starts)}

    def _counting(self, narrowed: Sequence[Arithmetic], stays: Stays) -> Arithmetic | None:
        """Return the first operation with a number that follows that of units, not the data; None: there is none."""
        if same_numbers(self.dense, narrowed):
            return None
        masked = _arithmetic(masked_copy(self.model, stays), self.inputs)
        changed = changed_numbers(narrowed, masked)
        if not changed:
            return None
        others = (_arithmetic(copy, self.inputs) for copy in reweighted_copies(self.model, stays))
        data = data_numbers(masked, (self.dense, *others))
        return next((narrowed[i] for i, j in changed.items() if j not in data), None)


def _arithmetic(model: nn.Module, inputs: ModelInputs) -> Sequence[Arithmetic]:
    """Return what a model computes with Python numbers; nothing if it fails, as some do that detect nothing."""
    try:
        return trace_model(model, inputs).arithmetic
    except Exception:  # whatever code raises
        return ()


def _trains(model: nn.Module, inputs: ModelInputs) -> bool:
    """Whether a forward pass in training mode succeeds; nothing of it is left behind."""
    with evaluating(model):
        model.train()
        try:
            call(model, inputs)
        except Exception:  # targets are missing, one sample is too few, or sizes do not fit
            return False
    return True


def _units_left(groups: Sequence[Group]) -> dict[Group, int]:
    """How many units each group keeps: neighbours lose other numbers, and those that share a tensor ever fewer.

    A tensor that code cuts in halves may come out right by accident: with the first half larger by one, or equal. So
    each group loses two at least, and a later part of the same tensor less than an earlier one. Two heads stay: of a
    single one it could not be seen that it is one.
    """
    return {group: max(group.size - lost, _least(group)) for group, lost in _losses(groups).items()}


def _trials(groups: Sequence[Group]) -> list[dict[Group, int]]:
    """Return how many units each group keeps in one trial, or in two if small groups of one size come out alike in it.

    In the second they lose none, one and so on, in turn; a single head is not left, for it would fit by broadcasting.
    """
    first = _units_left(groups)
    small = [g for g, lost in _losses(groups).items() if g.size - max(lost, MOST_LOST) < _least(g)]
    if all(count == 1 for count in Counter((g.kind, g.size, first[g]) for g in small).values()):
        return [first]
    second, ranks = dict(first), Counter[tuple[str, int]]()
    for group in small:
        second[group] = group.size - ranks[group.kind, group.size] % (group.size - _least(group) + 1)
        ranks[group.kind, group.size] += 1
    return [first, second]


def _least(group: Group) -> int:
    return 2 if group.kind == "head" and group.size > 2 else 1


def _losses(groups: Sequence[Group]) -> dict[Group, int]:
    """Return how many units each group loses if it has as many to give."""
    places = [[(part.tensor, part.dim) for part in group.slices if part.makes] for group in groups]
    total = Counter(place for own in places for place in own)
    seen: Counter[TensorDim] = Counter()
    losses: dict[Group, int] = {}
    for i, group in enumerate(groups):
        seen.update(places[i])
        sharing = max(total[place] for place in places[i]) > 1
        cycle = i % (MOST_LOST - LEAST_LOST + 1)
        losses[group] = LEAST_LOST + (max(total[p] - seen[p] for p in places[i]) if sharing else cycle)
    return losses


def _intact(
    group: Group,
    units: int,
    stays: Stays,
    component: np.ndarray,
    sizes: np.ndarray,
    starts: Mapping[TensorDim, int],
) -> bool:
    """Whether each unit still is one free set of tied ids, with all its entries and no others.

    A single unit that is left cannot be told from a fixed size, so that it runs must do.
    """
    if units == 1:
        return True
    rows = []
    for part in group.slices:
        place = part.tensor, part.dim
        if place in starts:  # a dimension of one index has no ids
            position = np.cumsum(stays[place]) - 1
            within = np.add.outer(np.array(part.offsets), np.arange(part.span)).flatten()
            old = np.add.outer(np.arange(units) * part.span, within)
            rows.append(component[starts[place] + position[old]])
    table = np.concatenate(rows, axis=1)
    first = table[:, 0]
    whole = bool((table == first[:, None]).all() and (sizes[first] == table.shape[1]).all())
    return whole and bool(first.all()) and len(set(first.tolist())) == units
