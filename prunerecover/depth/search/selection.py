"""Turn importances and a budget into the set of units that go.

A unit inside another one goes with it: no attention is counted in a removed block, no activation in a removed MLP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prunerecover.importance.registry import RegisteredImportance
from prunerecover.model.paths import is_within
from prunerecover.plan.kinds import TRAITS, holders_first
from prunerecover.plan.units import Unit

TRIED = 8  # changes of a selection that are measured before it is taken as it is


def select_by_count(units: Sequence[Unit], importance: Mapping[str, float], counts: Mapping[str, int]) -> list[Unit]:
    """Return the least important units of each kind; ties go by depth, blocks and MLPs before what is in them.

    Args:
        units: To choose from, in order of depth.
        importance: By unit name; higher means keep.
        counts: How many of each kind go.

    Raises:
        ValueError: If there are not enough units that are not inside one another.
    """
    chosen: list[Unit] = []
    for kind in sorted(counts, key=holders_first):
        free = [u for u in units if u.kind == kind and not any(is_inside(u, other) for other in chosen)]
        if counts[kind] > len(free):
            raise ValueError(
                f"Expected at most {len(free)} units of kind '{kind}' outside the other removed units, but got "
                f"{counts[kind]}. Lower one of the numbers."
            )
        chosen += sorted(free, key=lambda u: importance[u.name])[: counts[kind]]
    return chosen


def select_by_cost(
    units: Sequence[Unit],
    importance: Mapping[str, float],
    cost: str,
    share: float,
    removed_share: Callable[[Sequence[Unit]], float],
    most_blocks: int,
) -> list[Unit]:
    """Return the shortest prefix of the units, by importance per cost, whose removal reaches a share of the cost.

    What it takes beyond the share is given back as far as the units allow, but for latency, which no clock tells so
    finely: see `trim`.

    Args:
        units: Of any kinds.
        importance: By unit name, comparable across kinds.
        cost: "macs", "params" or "latency".
        share: Of the cost that has to go.
        removed_share: Measures the share that goes with some units, growing with their number; found by bisection.
        most_blocks: How many blocks may go.

    Raises:
        ValueError: If removing all of them is not enough.
    """
    order = by_cost(units, importance, cost, most_blocks)
    low, high = int(share > 0), len(order)  # by definition nothing goes with no unit, whatever a clock says
    _check_reached(order, cost, share, removed_share)
    while low < high:
        middle = (low + high) // 2
        if removed_share(outermost(order[:middle])) >= share:
            high = middle
        else:
            low = middle + 1
    prefix = outermost(order[:high])
    return prefix if cost == "latency" else trim(prefix, order, importance, cost, share, removed_share)


def count_by_kind(units: Sequence[Unit]) -> dict[str, int]:
    """Return how many units there are of each kind."""
    return {kind: sum(u.kind == kind for u in units) for kind in {u.kind for u in units}}


def smallest_share(units: Sequence[Unit], saved: Callable[[Sequence[Unit]], float], cost: str) -> float:
    """Return the share of the cost that goes with the smallest unit that saves any."""
    by_size = sorted((unit for unit in units if cost_of(unit, cost)), key=lambda unit: cost_of(unit, cost))
    return next((share for unit in by_size if (share := saved([unit])) > 0), 0.0)


def check_most(
    units: Sequence[Unit],
    cost: str,
    share: float,
    removed_share: Callable[[Sequence[Unit]], float],
    most_blocks: int,
) -> None:
    """Raise ValueError, and say how much can go, unless all units that may go together hold a share of the cost.

    Args:
        units: That may go.
        cost: See `select_by_cost`.
        share: That has to go.
        removed_share: See `select_by_cost`.
        most_blocks: See `select_by_cost`.
    """
    order = by_cost(units, {unit.name: 1.0 for unit in units}, cost, most_blocks)
    _check_reached(order, cost, share, removed_share)


def _check_reached(
    order: Sequence[Unit], cost: str, share: float, removed_share: Callable[[Sequence[Unit]], float]
) -> None:
    most = removed_share(outermost(order)) if order else 0.0  # a clock sees something go with nothing
    if most < share:
        raise ValueError(
            f"Expected units that hold {share:.1%} of the {cost}, but all {len(order)} that may go hold {most:.1%}. "
            "Lower the budget, or ignore fewer units."
        )


def trim(
    selected: Sequence[Unit],
    order: Sequence[Unit],
    importance: Mapping[str, float],
    cost: str,
    share: float,
    removed_share: Callable[[Sequence[Unit]], float],
) -> list[Unit]:
    """Keep or exchange units until no more goes beyond the share than the smallest unit holds, or nothing helps.

    One unit at a time stays, or a smaller one goes in its place; of what helps, that which loses least importance.

    Args:
        selected: Whose removal reaches the share; none inside another.
        order: Of all units that may go.
        importance: As of `select_by_cost`.
        cost: As of `select_by_cost`.
        share: As of `select_by_cost`.
        removed_share: As of `select_by_cost`.
    """
    alone: dict[tuple[str, int], float] = {}  # units of one kind and size are alike

    def share_of(unit: Unit) -> float:
        alike = unit.kind, cost_of(unit, cost)
        if alike not in alone:
            alone[alike] = removed_share([unit])
        return alone[alike]

    chosen, removed = list(selected), removed_share(selected)
    smallest = min(map(share_of, order), default=0.0)
    while removed - share > smallest:
        changes = sorted(
            _changes(chosen, order, share_of, removed - share),
            key=lambda change: (
                max(removed - share - change.saved, smallest),
                sum(importance[u.name] for u in change.into) - importance[change.unit.name],
            ),
        )
        for change in changes[:TRIED]:
            candidate = [u for u in chosen if u is not change.unit] + list(change.into)
            found = removed_share(candidate)
            if share <= found < removed:
                chosen, removed = candidate, found
                break
        else:
            break
    return chosen


def _changes(
    chosen: Sequence[Unit], order: Sequence[Unit], share_of: Callable[[Unit], float], most: float
) -> list[_Change]:
    """Return changes that keep more of the cost, but no more than `most` by the shares of units alone."""
    found = []
    for unit in chosen:
        others = [u for u in chosen if u is not unit]
        free = [u for u in order if not any(u == o or conflicting(u, o) for o in others)]
        ways = [(), *((u,) for u in free)]
        changes = (_Change(unit, into, share_of(unit) - sum(map(share_of, into))) for into in ways)
        found += [change for change in changes if 0 < change.saved <= most + 1e-9]
    return found


@dataclass(frozen=True)
class _Change:
    """A unit stays, and those of `into` go in its place, which keeps `saved` of the cost."""

    unit: Unit
    into: tuple[Unit, ...]
    saved: float


def cost_of(unit: Unit, cost: str) -> int:
    """Return what a unit costs by itself; MACs stand for latency."""
    return unit.params if cost == "params" else unit.macs


def by_cost(units: Sequence[Unit], importance: Mapping[str, float], cost: str, most_blocks: int) -> list[Unit]:
    """Sort units with a cost by importance per cost, lowest first; the last blocks are left out, because one must stay.

    Args:
        units: Of any kinds; those that cost nothing are left out.
        importance: By unit name, comparable across kinds.
        cost: "macs", "params" or "latency". Latency is not known per unit: MACs stand for it in the order, and the
            prefix is measured.
        most_blocks: How many blocks may go.
    """
    costs = {u.name: cost_of(u, cost) for u in units}
    order = sorted((u for u in units if costs[u.name] > 0), key=lambda u: importance[u.name] / costs[u.name])
    staying = [u for u in order if u.kind == "block"][most_blocks:]
    return [u for u in order if u not in staying]


def check_comparable(units: Sequence[Unit], importance: RegisteredImportance) -> None:
    """Raise ValueError if a budget in cost would compare importances of several kinds that do not compare."""
    kinds = sorted({u.kind for u in units})
    if len(kinds) > 1 and not importance.comparable:
        raise ValueError(
            f"Expected importance='output_divergence' for a share of cost over several kinds ({', '.join(kinds)}), but "
            f"got '{importance.name}': its values differ in scale between kinds and must not be compared. Use "
            "Budget(remove=...) with a number per kind, or ignore all kinds but one."
        )


def outermost(units: Sequence[Unit]) -> list[Unit]:
    """Leave out units inside others of the list."""
    return [u for u in units if not any(is_inside(u, other) for other in units)]


def is_inside(unit: Unit, other: Unit) -> bool:
    """Whether `unit` goes when `other` goes: in a block, or the activation of an MLP."""
    held = unit.kind in TRAITS[other.kind].holds
    return held and any(is_within(unit.name, path) for path in other.targets)


def conflicting(unit: Unit, other: Unit) -> bool:
    """Whether only one of two units can go: one is inside the other, or they change the same linears."""
    if {unit.kind, other.kind} == {"activation", "layer"}:
        activation, layer = sorted((unit, other), key=lambda one: one.kind)
        return layer.name in activation.targets
    return is_inside(unit, other) or is_inside(other, unit)
