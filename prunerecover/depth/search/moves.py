"""Moves of more than one unit: layers of one module together, and a unit in the place of those inside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from prunerecover.depth.search.goals import Goal
from prunerecover.depth.search.selection import conflicting
from prunerecover.model.paths import parent_path
from prunerecover.plan.units import Unit

MODULE = 3  # layers of a module of which every combination is tried; of larger ones, all layers together
LARGEST = 8  # layers of a module that may go together

Move = tuple[Unit, ...]


def holders(goal: Goal, chosen: Move) -> list[Move]:
    """Return sets in which a unit goes in the place of chosen ones that are inside it, or share its linears.

    Args:
        goal: Says which units may go.
        chosen: Units that go.

    Returns:
        Sets with the new unit last.
    """
    found = []
    for unit in goal.units_to_score():
        rest = tuple(own for own in chosen if own != unit and not conflicting(unit, own))
        if unit not in chosen and len(rest) < len(chosen) and unit in goal.open(rest):
            found.append((*rest, unit))
    return found


def of_one_module(units: Sequence[Unit]) -> Iterator[Move]:
    """Yield layers of one module that may go together although none of them can go alone."""
    modules: dict[str, list[Unit]] = {}
    for unit in units:
        if unit.kind == "layer":
            modules.setdefault(parent_path(unit.name), []).append(unit)
    for layers in modules.values():
        sizes = range(2, len(layers) + 1) if len(layers) <= MODULE else [len(layers)]
        for size in sizes if len(layers) <= LARGEST else ():
            yield from combinations(layers, size)
