"""Order of fitting and judging replacements: by the first block with a possible change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prunerecover.families.layout import Layout
from prunerecover.plan.kinds import KINDS
from prunerecover.plan.units import Unit


def by_block(units: Sequence[Unit], block_of: Callable[[Unit], int]) -> Iterator[tuple[int, list[Unit]]]:
    """Yield each block with units to remove, and the units in the order of removal."""
    homes = {unit.name: block_of(unit) for unit in units}
    for index in sorted(set(homes.values())):
        yield index, sorted((u for u in units if homes[u.name] == index), key=lambda u: KINDS.index(u.kind))


def start_of(layout: Layout, unit: Unit, with_map: bool) -> int:
    """Return the first block that may change when a unit is removed.

    Args:
        layout: Layout of the model.
        unit: Block, first block of a run, or any other unit; other units change only the block around them.
        with_map: Whether the unit may leave a map, in the block before it.
    """
    return max(layout.block_of(unit.name) - (1 if with_map else 0), 0)


def in_order(layout: Layout, units: Sequence[Unit], with_maps: bool) -> Iterator[tuple[int, list[Unit]]]:
    """Yield the first block that may change, and the units to fit together.

    Args:
        layout: Layout of the model.
        units: All units to remove.
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
