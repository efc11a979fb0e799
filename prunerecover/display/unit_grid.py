"""Layout of a picture of depth: the cell of every unit, and labels that give the unit's name.

Networks of repeated blocks have a column per block and a row per place in the block. The number of the block in a
unit's name differs among networks (`model.4.m.0.cv1`, `layers.0.blocks.1.attn`): the choice with fewer empty cells
counts. Where most cells would be empty, every unit has its own column.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

SPARSEST = 0.5  # share of the cells that hold a unit
Split = Callable[[str], tuple[str, str]]


@dataclass(frozen=True)
class UnitGrid:
    """Cells of units.

    Attributes:
        cells: Column and row of every unit, by name.
        columns: Labels of the columns: blocks, or names of units, without the common beginning.
        rows: Labels of the rows: kinds, or places in a block.
        prefix: Common beginning of the columns' names, including the last dot.
    """

    cells: Mapping[str, tuple[int, int]]
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    prefix: str = ""


def arranged(kinds: Mapping[str, str], rank: Callable[[str], int]) -> UnitGrid:
    """Return the layout of units.

    Args:
        kinds: Kinds of the units by name, in order of depth.
        rank: Function that returns the place of a kind among the rows.

    >>> arranged({"blocks.0.attn": "attention", "blocks.1.attn": "attention", "blocks.1.mlp": "mlp"}, len).cells
    {'blocks.0.attn': (0, 1), 'blocks.1.attn': (1, 1), 'blocks.1.mlp': (1, 0)}
    """
    at_numbers: tuple[Split, ...] = (partial(parts_of, number=0), parts_of)
    split = min(at_numbers, key=lambda split: _area(kinds, split, labels=1))
    if len(kinds) < SPARSEST * _area(kinds, split):
        split = _nowhere
    parts = {name: split(name) for name in kinds}
    blocks = list(dict.fromkeys(block for block, _ in parts.values()))
    in_block = {name: place or kinds[name] for name, (_, place) in parts.items()}
    places = _rows(kinds, in_block, rank)
    prefix = shared_prefix(blocks)
    return UnitGrid(
        cells={name: (blocks.index(block), places[name][0]) for name, (block, _) in parts.items()},
        columns=tuple(block.removeprefix(prefix) for block in blocks),
        rows=tuple(dict(sorted(places.values())).values()),
        prefix=prefix,
    )


def parts_of(name: str, number: int = -1) -> tuple[str, str]:
    """Return the path up to a number, and the rest; a name without a number is a block of its own.

    >>> parts_of("model.4.m.0.cv1"), parts_of("model.4.m.0.cv1", number=0)
    (('model.4.m.0', 'cv1'), ('model.4', 'm.0.cv1'))

    Args:
        name: Name of a unit.
        number: Index among the numbers in the name.
    """
    parts = name.split(".")
    numbered = [i for i, part in enumerate(parts) if part.isdigit()]
    end = numbered[number] + 1 if numbered else len(parts)
    return ".".join(parts[:end]), ".".join(parts[end:])


def shared_prefix(names: Sequence[str]) -> str:
    """Return the common beginning of all names, up to and including a dot.

    >>> shared_prefix(["blocks.0.attn.qkv", "blocks.0.mlp.fc1", "blocks.1.mlp.fc1"])
    'blocks.'
    """
    before, dot, _ = os.path.commonprefix(names).rpartition(".")
    return before + dot


def _rows(
    kinds: Mapping[str, str], places: Mapping[str, str], rank: Callable[[str], int]
) -> dict[str, tuple[int, str]]:
    """Return number and label of every unit's row; the label is a kind where unique.

    Args:
        kinds: Kinds of units by name.
        places: Places of units by name; units with the same place share a row.
        rank: Function that returns the place of a kind among the rows.
    """
    held = {
        place: {kinds[name] for name in places if places[name] == place} for place in dict.fromkeys(places.values())
    }
    order = sorted(held, key=lambda place: min(map(rank, held[place])))
    alone = all(len(own) == 1 for own in held.values()) and len({*map(frozenset, held.values())}) == len(held)
    labels = {place: min(held[place]) if alone else place for place in order}
    return {name: (order.index(place), labels[place]) for name, place in places.items()}


def _area(names: Iterable[str], split: Split, labels: int = 0) -> int:
    """Return the number of cells, including `labels` columns and rows for labels."""
    blocks, places = (set(parts) for parts in zip(*map(split, names), strict=True))
    return (len(blocks) + labels) * (len(places) + labels)


def _nowhere(name: str) -> tuple[str, str]:
    return name, ""
