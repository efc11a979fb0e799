"""Order in which stand-ins are fitted and judged: block by block, in which the model changes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prunerecover.families.layout import Layout
from prunerecover.plan.kinds import KINDS
from prunerecover.plan.units import Unit


def by_block(units: Sequence[Unit], block_of: Callable[[Unit], int]) -> Iterator[tuple[int, list[Unit]]]:
    """Yield each block that units belong to, with its units in the order in which they go."""
    homes = {unit.name: block_of(unit) for unit in units}
    for index in sorted(set(homes.values())):
        yield index, sorted((u for u in units if homes[u.name] == index), key=lambda u: KINDS.index(u.kind))


def start_of(layout: Layout, unit: Unit, with_map: bool) -> int:
    """Return the first block that may change as a unit goes.

    Args:
        layout: Of the model.
        unit: A block, or the first of a run; or another unit, which changes its own block.
        with_map: Whether it may leave a map, in the block before it.
    """
    return max(layout.block_of(unit.name) - (1 if with_map else 0), 0)


def in_order(layout: Layout, units: Sequence[Unit], with_maps: bool) -> Iterator[tuple[int, list[Unit]]]:
    """Yield units that are fitted together, and the first block that may change.

    Args:
        layout: Of the model.
        units: All that goes.
        with_maps: Whether runs of blocks may leave a map, in the block before them.
    """
    run: list[Unit] = []

    for index, here in by_block(units, lambda unit: layout.block_of(unit.name)):
        if run and (here[0].kind != "block" or layout.block_of(run[-1].name) != index - 1):
            yield start_of(layout, run[0], with_maps), run
            run = []
        if here[0].kind == "block":
            run = [*run, *here]
        else:
            yield from ((index, [unit]) for unit in here)
    if run:
        yield start_of(layout, run[0], with_maps), run
