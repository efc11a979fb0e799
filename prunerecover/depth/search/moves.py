"""Moves of several units: layers of a module together, and a unit in the place of the units inside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from prunerecover.depth.search.goals import Goal
from prunerecover.depth.search.selection import conflicting
from prunerecover.model.paths import parent_path
from prunerecover.plan.units import Unit

MODULE = 3  # layers of a module of which every combination is tried; in larger modules, all layers together
LARGEST = 8  # layers of a module that may go together

Move = tuple[Unit, ...]


def holders(goal: Goal, chosen: Move) -> list[Move]:
    """Return sets in which a unit goes in the place of chosen units inside, or with the same linears.

    Args:
        goal: Goal, with the removable units.
        chosen: Chosen units.

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
    """Yield layers of a module that may go together although none can go alone."""
    modules: dict[str, list[Unit]] = {}
    for unit in units:
        if unit.kind == "layer":
            modules.setdefault(parent_path(unit.name), []).append(unit)
    for layers in modules.values():
        sizes = range(2, len(layers) + 1) if len(layers) <= MODULE else [len(layers)]
        for size in sizes if len(layers) <= LARGEST else ():
            yield from combinations(layers, size)
