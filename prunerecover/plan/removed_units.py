"""Removed units: their names in the dense model, and what a plan is that removes only those which went first.

The edits of a plan are sequential: once a whole block is taken out, the blocks behind it move up, and later edits name
them by their new numbers; so do the units of a group that is narrowed twice. People read the numbers of the model they
started from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prunerecover.plan.edits import Bypass, Config, Edit, Fold, Narrow, Remove, Replace
from prunerecover.plan.evidence import DepthEvidence
from prunerecover.plan.units import number_of_block

LISTED = 8  # units of one group; beyond, they are counted


@dataclass(frozen=True)
class RemovedUnit:
    """One removed unit.

    Args:
        name: Its name in the dense model.
        kind: Its kind.
        leaves: What stands in its place; `"nothing"` for a block, which is taken out, and for what is narrowed; `"map"`
            for the last block of a run that a linear elsewhere makes up for.
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


def names_after(edits: Iterable[Edit]) -> DenseNames:
    """Return what translates names after some edits to those before them.

    >>> names_after([Remove(unit="blocks.3", kind="block")]).dense_name("blocks.3.attn")
    'blocks.4.attn'
    """
    names = DenseNames()
    for edit in edits:
        if isinstance(edit, Remove) and edit.kind == "block":
            names.remove_block(names.dense_name(edit.unit))
    return names


def first_units(edits: Sequence[Edit], evidence: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return edits, result and evidence of the plan that removes the units which went first; see `Plan.first`.

    Args:
        edits: Of the whole plan.
        evidence: Of the whole plan.
        count: Of units, at least one.
    """
    order = DepthEvidence.of(evidence).order
    if not order or {step.unit for step in order} != {unit.name for unit in removed_units(edits)}:
        raise ValueError(
            "Expected a plan whose units leave nothing and whose order of removal is known, as plan_depth makes it for "
            "whole blocks and with replace='zero', but what its units leave or how others were narrowed holds for all "
            "of them together. Plan anew with fewer."
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
    """Whether units leave nothing in their place, so that each stays removable without the others.

    Maps that are folded before runs of blocks go with their runs.
    """
    return all(isinstance(edit, Remove | Config | Fold) for edit in edits)


def edits_without_others(edits: Sequence[Edit], units: Sequence[str], config: dict[str, Any]) -> tuple[Edit, ...]:
    """Return the edits that remove some units alone, with the maps folded for runs of which every block goes.

    Args:
        edits: Of `Remove`, `Config` and `Fold`; blocks go from the end, so that each is named as in the dense model.
        units: Names of those that go.
        config: What a transformers config says then; empty for none.
    """
    folds = [edit for edit in edits if isinstance(edit, Fold) and set(_run_of(edit)) <= set(units)]
    removed = [edit for edit in edits if isinstance(edit, Remove) and edit.unit in units]
    return (*folds, *removed, Config(set=config)) if config else (*folds, *removed)


def _run_of(fold: Fold) -> list[str]:
    """Return the blocks that a map stands for: those between the block of its linear and its unit, which is the last.

    >>> _run_of(Fold(unit="layers.4", into="layers.2.mlp.down"))
    ['layers.3', 'layers.4']
    """
    container, _, last = fold.unit.rpartition(".")
    before = fold.into.removeprefix(f"{container}.").partition(".")[0]
    if number_of_block(before) is None or number_of_block(last) is None:  # edited by hand
        return [fold.unit]
    return [f"{container}.{number}" for number in range(int(before) + 1, int(last) + 1)]
