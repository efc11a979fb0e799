"""Say what a plan removed in the names of the dense model.

The edits of a plan are sequential: once a whole block is taken out, the blocks behind it move up, and later edits name
them by their new numbers. People read the numbers of the model they started from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prunerecover.edits import Edit, Remove, Replace


@dataclass(frozen=True)
class RemovedUnit:
    """One removed unit.

    Args:
        name: Its name in the dense model.
        kind: Its kind.
        leaves: What stands in its place; `"nothing"` for a block, which is taken out.
    """

    name: str
    kind: str
    leaves: str


def removed_units(edits: Iterable[Edit]) -> tuple[RemovedUnit, ...]:
    """List the units that edits remove or replace, in their order.

    >>> first, second = (Remove(unit="blocks.3", kind="block") for _ in range(2))
    >>> [unit.name for unit in removed_units([first, second])]
    ['blocks.3', 'blocks.4']
    """
    taken: dict[str, list[int]] = {}  # per container of blocks: numbers in the dense model, increasing
    found = []
    for edit in edits:
        if not isinstance(edit, Remove | Replace):
            continue
        name = _dense_name(edit.unit, taken)
        found.append(RemovedUnit(name, edit.kind, "nothing" if edit.kind == "block" else edit.leaves))
        if edit.kind == "block":
            container, _, number = name.rpartition(".")
            taken[container] = sorted([*taken.get(container, []), int(number)])
    return tuple(found)


def _dense_name(name: str, taken: dict[str, list[int]]) -> str:
    for container, numbers in taken.items():
        if name.startswith(container + "."):
            number, *rest = name.removeprefix(container + ".").split(".")
            index = int(number)
            for gone in numbers:
                index += gone <= index
            return ".".join([container, str(index), *rest])
    return name
