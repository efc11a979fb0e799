"""Names of removed units in the dense model.

The edits of a plan are sequential: once a whole block is taken out, the blocks behind it move up, and later edits name
them by their new numbers; so do the units of a group that is narrowed twice. People read the numbers of the model they
started from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prunerecover.plan.edits import Bypass, Edit, Narrow, Remove, Replace, number_of_block

LISTED = 8  # units of one group; beyond, they are counted


@dataclass(frozen=True)
class RemovedUnit:
    """One removed unit.

    Args:
        name: Its name in the dense model.
        kind: Its kind.
        leaves: What stands in its place; `"nothing"` for a block, which is taken out, and for what is narrowed.
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
    numbers = DenseNames()
    found: list[RemovedUnit] = []
    for edit in edits:
        if isinstance(edit, Narrow):
            gone = list(numbers.narrowed(edit))
            found += (RemovedUnit(name, edit.kind, "nothing") for name in gone if not edit.serves)
        elif isinstance(edit, Bypass):
            found.append(RemovedUnit(numbers.dense_name(edit.unit), edit.kind, edit.leaves))
        elif isinstance(edit, Remove | Replace):
            name = numbers.dense_name(edit.unit)
            found.append(RemovedUnit(name, edit.kind, "nothing" if edit.kind == "block" else edit.leaves))
            if edit.kind == "block":
                numbers.remove_block(name)
    return tuple(found)


def shortened(names: Iterable[str]) -> list[str]:
    """Join the units of one group, for messages: a list of hundreds of channels tells nobody anything.

    >>> shortened(["blocks.0.attn", "conv1[0]", "conv1[2]"])
    ['blocks.0.attn', 'conv1[0, 2]']
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        group, bracket, number = name.partition("[")
        groups.setdefault(group, []).extend([number.removesuffix("]")] if bracket else [])
    return [f"{group}[{_listed(units)}]" if units else group for group, units in groups.items()]


def _listed(numbers: list[str]) -> str:
    return ", ".join(numbers) if len(numbers) <= LISTED else f"{len(numbers)} units"


@dataclass
class DenseNames:
    """Translates names as edits give them, one edit after the other, to those of the dense model.

    Attributes:
        taken: Numbers of the blocks that are gone, ascending, by container.
        left: Numbers of the units that are left, ascending, by group and kind.
    """

    taken: dict[str, list[int]] = field(default_factory=dict)
    left: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def dense_name(self, name: str) -> str:
        """Return the dense model's name of what is now called `name`."""
        for container, numbers in self.taken.items():
            if name.startswith(container + "."):
                number, *rest = name.removeprefix(container + ".").split(".")
                index = number_of_block(number)
                if index is None:  # a plan edited by hand, which surgery will refuse
                    return name
                for gone in numbers:
                    index += gone <= index
                return ".".join([container, str(index), *rest])
        return name

    def remove_block(self, block: str) -> None:
        """Note that a block of the dense model is gone: those behind it move up."""
        container, number = block.rpartition(".")[0], number_of_block(block)
        if number is not None:  # else surgery will refuse
            self.taken[container] = sorted([*self.taken.get(container, []), number])

    def narrowed(self, edit: Narrow) -> Iterator[str]:
        """Yield the dense model's names of the units that an edit takes out, and note that they are gone."""
        group = self.dense_name(edit.unit)
        units = self.left.get((group, edit.kind), [])
        if len(units) != edit.of:  # the first time; or a plan edited by hand, which surgery will refuse
            units = list(range(edit.of))
        self.left[group, edit.kind] = [units[number] for number in edit.keep]
        for number in edit.gone:
            yield f"{group}[{units[number]}]"
