"""Greedy fill of a budget unit by unit: the common loop of all allocations of width.

Every group gives up units in a fixed order; equal layers give the next unit together. A key decides the next group,
lowest first; keys may grow as further groups give, never shrink: a heap with late updates finds the exact minimum. The
loop stops when the budget is met, and prefers finer units to a unit that exceeds the budget by a point. The excess is
given back, until less than the smallest unit is left over.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from torch import Tensor

from prunerecover.plan.budget import Budget
from prunerecover.plan.groups import Group
from prunerecover.plan.kinds import RANKED_WIDTH_KINDS
from prunerecover.refusal import Refusal
from prunerecover.width.allocation.cost_model import Cost, CostModel

Removed = dict[str, Tensor]  # indices of the removed units, ascending, by group name
PriorityKey = Callable[[str, int, int, Cost], float]  # group, units gone, units to go next, their saving; inf: never
Layers = tuple[Group, ...]  # groups with equal numbers of removed units
NEVER = float("inf")
COARSE = 0.01  # share of the whole: largest excess of the last unit, while there are finer units


@dataclass(frozen=True)
class Step:
    """The next units that layers give up together: units per group, and the amount saved in all."""

    units: int
    saved: int
    key: float


@dataclass(frozen=True)
class RemovalTarget:
    """Amount to remove, in "macs" or "params", or in units of one kind.

    Attributes:
        what: Cost, "macs" or "params", or kind of the counted units.
        amount: Amount to remove.
        full: Amount in the dense network.
        groups: Groups to choose from; the order decides between equal keys.
    """

    what: str
    amount: float
    full: int
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, budget: Budget, groups: Sequence[Group], costs: CostModel) -> RemovalTarget:
        """Return the target of a budget.

        Args:
            budget: Budget as the user gave it.
            groups: Groups to choose from.
            costs: Cost model of the groups.

        Raises:
            ValueError: If the budget is neither a share of MACs or parameters nor in units of one kind of width, or
                exceeds the number of units.
        """
        if budget.share is not None:
            what, share = budget.share
            if what not in Cost._fields:
                raise ValueError(
                    f"Expected a budget of MACs, parameters or units, but got {budget.to_dict()}. "
                    "For example Budget(macs=0.3)."
                )
            full = getattr(costs.full, what)
            return cls(what, share * full, full, tuple(groups))
        kind = kind_of(budget)
        own = tuple(group for group in groups if group.kind == kind)
        full = sum(group.size for group in own)
        return cls(kind, budget.counts({kind: full})[kind], full, own)

    @property
    def in_units(self) -> bool:
        """Whether units are counted, regardless of their cost."""
        return self.what not in Cost._fields

    def __str__(self) -> str:
        if self.in_units:
            return f"{self.amount:.0f} of {self.full} {self.what}s"
        return f"{self.amount / self.full:.1%} of the {self.what}"


def kind_of(budget: Budget) -> str:
    """Return the kind of the units in a budget.

    Raises:
        ValueError: If the budget is not in units of one kind of width.
    """
    kinds = budget.kinds(()) if budget.in_units else ()
    if len(kinds) != 1 or kinds[0] not in RANKED_WIDTH_KINDS:
        raise ValueError(
            "Expected a budget in a share of macs, params or latency, or in units of one kind among "
            f"{', '.join(RANKED_WIDTH_KINDS)}, but got {budget.to_dict()}. For several kinds, add plans: p1 + p2."
        )
    return kinds[0]


def max_removable(group: Group, most: float = 0.9) -> int:
    """Return the largest number of removable units: at most a share, leaving `at_least` and a multiple of `multiple`.

    Raises:
        ValueError: If the share is not in (0, 1].
    """
    if not 0 < most <= 1:
        raise ValueError(f"Expected the most that a group may lose as a share in (0, 1], but got {most}.")
    return allowed(group, int(most * group.size + 1e-9))


def allowed(group: Group, count: int) -> int:
    """Return the largest number of units, at most `count`, that a group may lose by its rules."""
    keep = max(group.at_least, group.size - count)
    return max(0, group.size - -(-keep // group.multiple) * group.multiple)


def fill(
    costs: CostModel,
    target: RemovalTarget,
    key: PriorityKey,
    end: Mapping[str, int],
    start: Mapping[str, int] | None = None,
    *,
    layers: Sequence[Layers] | None = None,
    beyond: bool = True,
) -> dict[str, int]:
    """Return the number of removed units per group that just meets the target.

    Args:
        costs: Cost model of the target's groups, at least.
        target: Amount to remove.
        key: Priority of the next group, lowest first.
        end: Largest number of removed units per group.
        start: Number of units removed before the first step.
        layers: Tuples of groups with equal numbers of removed units, ranked by their first group; None: each group for
            itself.
        beyond: Whether to exceed the target, by less than the smallest step; False: at most the target.

    Raises:
        ValueError: If all removable units are not enough; the message states the possible amount.
    """
    gone = {group.name: (start or {}).get(group.name, 0) for group in target.groups}
    steps, saved = _Steps(costs, target, key, end, gone), saved_by(costs, target, gone)
    every, slack = layers or [(group,) for group in target.groups], math.inf if layers else COARSE * target.full
    heap: list[tuple[float, int]] = []
    for number, one in enumerate(every):
        _push(heap, number, steps.next(one))
    coarse: list[tuple[int, int]] = []  # units with too large a saving, by saving: the smallest goes
    while saved < target.amount and (heap or coarse):
        finer = bool(heap)
        _, number = heapq.heappop(heap) if finer else heapq.heappop(coarse)
        step = steps.next(every[number])
        assert step is not None, "only groups that may lose more are on the heap"
        if heap and (step.key, number) > heap[0]:
            _push(heap, number, step)
            continue
        if finer and saved + step.saved > target.amount + slack:
            heapq.heappush(coarse, (step.saved, number))
            continue
        if not beyond and saved + step.saved > target.amount:
            return gone
        saved += steps.take(every[number], step)
        _push(heap, number, steps.next(every[number]))
    if beyond:
        _check_met(target, saved, costs)
    steps.give_back(every, saved)
    return gone


def _check_met(target: RemovalTarget, saved: int, costs: CostModel) -> None:
    """Raise ValueError with the possible amount and the obstacles, unless the saving is enough.

    Args:
        target: Amount to remove.
        saved: Largest possible saving.
        costs: Cost model of the target's groups.
    """
    if saved < target.amount:
        can = str(saved) if target.in_units else f"{saved / target.full:.1%}"
        experts = (group for group in target.groups if group.kind == "expert")
        routed = max(experts, key=attrgetter("at_least"), default=None)
        causes = [] if routed is None else [f"The router of '{routed.name}' needs {routed.at_least} experts"]
        multiple = max((group.multiple for group in target.groups if group.multiple > group.strata), default=0)
        causes += [f"Widths stay multiples of up to {multiple}: a lower round_to lets more go"] if multiple else []
        reasons = [] if target.in_units else costs.out_of_reach.reasons(target.what)
        raise Refusal(
            f"a budget that the groups can meet, {target}",
            ". ".join((f"at most {can} can go", *causes, *(cause for cause, _ in reasons))),
            " ".join((*(way_out for _, way_out in reasons), "Lower the budget, or ignore fewer groups.")),
        )


def _push(heap: list[tuple[float, int]], number: int, step: Step | None) -> None:
    if step is not None and step.key < NEVER:
        heapq.heappush(heap, (step.key, number))


@dataclass(frozen=True)
class _Steps:
    """Steps of a fill; arguments as of `fill`, and the units removed so far, in `gone`."""

    costs: CostModel
    target: RemovalTarget
    key: PriorityKey
    end: Mapping[str, int]
    gone: dict[str, int]

    def next(self, layers: Layers) -> Step | None:
        """Return the next step of layers; None at their end."""
        first, gone = layers[0], self.gone[layers[0].name]
        units = (first.size - gone) % first.multiple or first.multiple
        return self._step(layers, units, self.gone) if gone + units <= self.end[first.name] else None

    def take(self, layers: Layers, step: Step, times: int = 1) -> int:
        """Take a step, or take the step back; return the amount saved by it."""
        for group in layers:
            self.gone[group.name] += times * step.units
        return times * step.saved

    def give_back(self, every: Sequence[Layers], saved: int) -> None:
        """Take back the units with the highest keys beyond the target."""
        while True:
            last = [(one, step) for one in every if (step := self._last(one)) is not None]
            spare = [(one, step) for one, step in last if 0 < step.saved <= saved - self.target.amount]
            if not spare:
                return
            saved += self.take(*max(spare, key=lambda each: each[1].key), times=-1)

    def _last(self, layers: Layers) -> Step | None:
        """Return the last step that layers took; None if no unit has gone."""
        first, gone = layers[0], self.gone[layers[0].name]
        partly = first.size % first.multiple or first.multiple  # the first step
        units = min(gone, partly if gone == partly else first.multiple)
        before = {group.name: self.gone[group.name] - units for group in layers}
        return self._step(layers, units, {**self.gone, **before}) if units else None

    def _step(self, layers: Layers, units: int, gone: Mapping[str, int]) -> Step:
        name, after, macs, params = layers[0].name, dict(gone), 0, 0
        for group in layers:
            own = self.costs.saving(group.name, after, units)
            after[group.name] += units
            macs, params = macs + own.macs, params + own.params
        saving = Cost(macs, params)
        saved = units * len(layers) if self.target.in_units else int(getattr(saving, self.target.what))
        return Step(units, saved, self.key(name, gone[name], units, saving))


def saved_by(costs: CostModel, target: RemovalTarget, gone: Mapping[str, int]) -> int:
    """Return the amount saved by a number of removed units per group.

    Args:
        costs: Cost model of the groups.
        target: Target with the measure: MACs, parameters or units.
        gone: Number of removed units by group name.
    """
    if target.in_units:
        return sum(gone.get(group.name, 0) for group in target.groups)
    kept = {name: costs.sizes[name] - count for name, count in gone.items()}
    return target.full - int(getattr(costs.total(kept), target.what))
