"""Removed units: names in the dense model, and the plan of the first removals alone.

The edits of a plan are sequential: after the removal of a block, the blocks behind move up, and later edits use the new
numbers; the same holds for the units of a group narrowed twice. Readers expect numbers of the dense model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prunerecover.plan.edits import Bypass, Config, Edit, Fold, Narrow, Refit, Remove, Replace
from prunerecover.plan.evidence import DepthEvidence
from prunerecover.plan.units import number_of_block

LISTED = 8  # units of one group; beyond, they are counted


@dataclass(frozen=True)
class RemovedUnit:
    """A removed unit.

    Args:
        name: Name in the dense model.
        kind: Kind of the unit.
        leaves: Kind of the replacement; `"nothing"` for a removed block and for units of width; `"map"` for the last
            block of a run replaced by a map in an earlier linear.
    """

    name: str
    kind: str
    leaves: str


def removed_units(edits: Iterable[Edit]) -> tuple[RemovedUnit, ...]:
    """List the units that edits remove or replace, in order.

    >>> first, second = (Remove(unit="blocks.3", kind="block") for _ in range(2))
    >>> [unit.name for unit in removed_units([first, second])]
    ['blocks.3', 'blocks.4']
    """
    numbers, mapped = DenseNames(), set[str]()
    found: list[RemovedUnit] = []
    for edit in edits:
        if isinstance(edit, Narrow):
            gone = list(numbers.narrowed(edit))
            found += (RemovedUnit(name, edit.kind, "nothing") for name in gone if not edit.serves)
        elif isinstance(edit, Bypass):
            found.append(RemovedUnit(numbers.dense_name(edit.unit), edit.kind, edit.leaves))
        elif isinstance(edit, Fold):
            mapped.add(numbers.dense_name(edit.unit))
        elif isinstance(edit, Remove | Replace):
            name = numbers.dense_name(edit.unit)
            of_block = "map" if name in mapped else "nothing"
            found.append(RemovedUnit(name, edit.kind, of_block if edit.kind == "block" else edit.leaves))
            if edit.kind == "block":
                numbers.remove_block(name)
    return tuple(found)


def shortened(names: Iterable[str]) -> list[str]:
    """Join the names of units of a group, for readable messages.

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
    """Translation of names in edits, edit after edit, to names of the dense model.

    Attributes:
        taken: Numbers of the removed blocks, ascending, by container.
        left: Numbers of the kept units, ascending, by group and kind.
    """

    taken: dict[str, list[int]] = field(default_factory=dict)
    left: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def dense_name(self, name: str) -> str:
        """Return the name in the dense model for a present name."""
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
        """Record the removal of a block of the dense model: the blocks behind move up."""
        container, number = block.rpartition(".")[0], number_of_block(block)
        if number is not None:  # else surgery will refuse
            self.taken[container] = sorted([*self.taken.get(container, []), number])

    def narrowed(self, edit: Narrow) -> Iterator[str]:
        """Yield the names in the dense model of the units that an edit removes, and record the removal."""
        group = self.dense_name(edit.unit)
        units = self.left.get((group, edit.kind), [])
        if len(units) != edit.of:  # the first time; or a plan edited by hand, which surgery will refuse
            units = list(range(edit.of))
        self.left[group, edit.kind] = [units[number] for number in edit.keep]
        for number in edit.gone:
            yield f"{group}[{units[number]}]"


def names_after(edits: Iterable[Edit]) -> DenseNames:
    """Return a translation of names after some edits to names before them.

    >>> names_after([Remove(unit="blocks.3", kind="block")]).dense_name("blocks.3.attn")
    'blocks.4.attn'
    """
    names = DenseNames()
    for edit in edits:
        if isinstance(edit, Remove) and edit.kind == "block":
            names.remove_block(names.dense_name(edit.unit))
    return names


def first_units(edits: Sequence[Edit], evidence: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return edits, result and evidence of the plan with only the first removals; see `Plan.first`.

    Args:
        edits: Edits of the whole plan.
        evidence: Evidence of the whole plan.
        count: Number of units, at least one.

    Raises:
        ValueError: If the order of removal is unknown, or `count` is out of range.
    """
    order = DepthEvidence.of(evidence).order
    if not order or {step.unit for step in order} != {unit.name for unit in removed_units(edits)}:
        raise ValueError(
            "Expected a plan without replacements and with a known order of removal, as by plan_depth for whole blocks "
            "and with replace='zero', but the replacements or the narrowed widths of this plan were made for all units "
            "together. Plan again with fewer units."
        )
    if not 0 <= count <= len(order):
        raise ValueError(f"Expected 0 to {len(order)} units, as many as the plan removes, but got {count}.")
    steps = order[:count]
    left = edits_without_others(edits, [step.unit for step in steps], steps[-1].config)
    kept = {name: value for name, value in evidence.items() if name not in ("divergence", "removed_share")}
    return {
        "edits": left,
        "result": steps[-1].result,
        "evidence": {**kept, **DepthEvidence(order=steps).to_dict()},
    }


def leave_nothing(edits: Sequence[Edit]) -> bool:
    """Whether units are removed without replacements, so each stays removable without the rest.

    Layers fitted anew before runs of blocks are allowed: such a fit is dropped with the run, as is a folded map.
    """
    return all(isinstance(edit, Remove | Config | Fold | Refit) for edit in edits)


def edits_without_others(edits: Sequence[Edit], units: Sequence[str], config: dict[str, Any]) -> tuple[Edit, ...]:
    """Return the edits that remove some units alone, with the maps of completely removed runs.

    Args:
        edits: Edits of the kinds `Remove`, `Config`, `Fold` and `Refit`; blocks are removed from the end, so names are
            dense names.
        units: Names of the units to remove.
        config: Entries of a transformers config for the result; may be empty.
    """
    folds = [edit for edit in edits if isinstance(edit, Fold) and set(_run_of(edit)) <= set(units)]
    removed = [edit for edit in edits if isinstance(edit, Remove) and edit.unit in units]
    return (*folds, *removed, Config(set=config)) if config else (*folds, *removed)


def _run_of(fold: Fold) -> list[str]:
    """Return the blocks that a map replaces: behind the block of the linear, up to and including the unit.

    >>> _run_of(Fold(unit="layers.4", into="layers.2.mlp.down"))
    ['layers.3', 'layers.4']
    """
    container, _, last = fold.unit.rpartition(".")
    before = fold.into.removeprefix(f"{container}.").partition(".")[0]
    if number_of_block(before) is None or number_of_block(last) is None:  # edited by hand
        return [fold.unit]
    return [f"{container}.{number}" for number in range(int(before) + 1, int(last) + 1)]
