"""Turn importances and a budget into the set of units that go.

A unit inside another one goes with it: no attention is counted in a removed block, no activation in a removed MLP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from prunerecover.importance.registry import RegisteredImportance
from prunerecover.plan.kinds import TRAITS, holders_first
from prunerecover.plan.units import Unit


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
) -> list[Unit]:
    """Return the shortest prefix of the units, by importance per cost, whose removal reaches a share of the cost.

    Args:
        units: Of any kinds.
        importance: By unit name, comparable across kinds.
        cost: "macs", "params" or "latency".
        share: Of the cost that has to go.
        removed_share: Measures the share that goes with some units, growing with their number; found by bisection.

    Raises:
        ValueError: If removing all of them is not enough.
    """
    order = by_cost(units, importance, cost)
    low, high = int(share > 0), len(order)  # by definition nothing goes with no unit, whatever a clock says
    most = removed_share(outermost(order))
    if most < share:
        raise ValueError(
            f"Expected units that hold {share:.0%} of the {cost}, but all {len(order)} that may go hold {most:.1%}. "
            "Lower the budget, or ignore fewer units."
        )
    while low < high:
        middle = (low + high) // 2
        if removed_share(outermost(order[:middle])) >= share:
            high = middle
        else:
            low = middle + 1
    return outermost(order[:high])


def by_cost(units: Sequence[Unit], importance: Mapping[str, float], cost: str) -> list[Unit]:
    """Sort units with a cost by importance per cost, lowest first; the last block is left out, because one must stay.

    Args:
        units: Of any kinds; those that cost nothing are left out.
        importance: By unit name, comparable across kinds.
        cost: "macs", "params" or "latency". Latency is not known per unit: MACs stand for it in the order, and the
            prefix is measured.
    """
    costs = {u.name: u.params if cost == "params" else u.macs for u in units}
    order = sorted((u for u in units if costs[u.name] > 0), key=lambda u: importance[u.name] / costs[u.name])
    last = next((u for u in reversed(order) if u.kind == "block"), None)
    return [u for u in order if u is not last]


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
    return unit.kind in TRAITS[other.kind].holds and unit.block == other.block
