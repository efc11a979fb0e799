"""Units of depth: the smallest things that can be removed alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from prunerecover.display.summary import Summarised, Summary
from prunerecover.plan.kinds import Kind


@dataclass(frozen=True)
class Unit:
    """Something removable.

    Attributes:
        name: Canonical path; what plans name.
        kind: "block", "attention", "mlp", "activation" or "layer".
        targets: Paths of the modules that change; of an activation its own, and those of the linears around it.
        params: Parameters that go (activations: once the two linears have merged).
        macs: MACs per example batch that go (activations: once merged); 0 if `find_units` got no example.
        block: Path of the block that it is or is in.
    """

    name: str
    kind: Kind
    targets: tuple[str, ...]
    params: int
    macs: int = 0
    block: str = ""


class Units(Summarised, tuple[Unit, ...]):
    """Units, as `find_units` lists them.

    Attributes:
        refused: Why layers, branches and blocks that were seen are no units, by path.
    """

    refused: Mapping[str, str]

    def __new__(cls, units: Iterable[Unit] = (), refused: Mapping[str, str] = MappingProxyType({})) -> Units:
        """Make a list of units, beside what is refused."""
        made = super().__new__(cls, units)
        made.refused = dict(refused)
        return made

    def summary(self) -> Summary:
        """Return how many there are of each kind, and the first of them; what is refused, and why, if there is none."""
        if not self:
            return Summary.of_list("Units: none", ("no unit", "because"), list(self.refused.items()), tuple)
        kinds = Counter(unit.kind for unit in self)
        title = f"Units: {', '.join(f'{n} {kind}' for kind, n in kinds.items()) or 'none'}"
        costs = {"params": "parameters"} | ({"macs": "MACs"} if any(unit.macs for unit in self) else {})
        rows = [(unit.name, unit.kind, *(f"{getattr(unit, cost):,}" for cost in costs)) for unit in self]
        return Summary.of_list(title, ("unit", "kind", *costs.values()), rows, tuple)


def names_of(units: Iterable[Unit]) -> frozenset[str]:
    """Return the names of some units, whatever their order."""
    return frozenset(unit.name for unit in units)


def number_of_block(path: str) -> int | None:
    """Return the number at the end of a path, if modules are named so: without zeros before it.

    >>> number_of_block("blocks.3"), number_of_block("blocks.x"), number_of_block("blocks.03")
    (3, None, None)
    """
    found = re.fullmatch(r"(?:.*\.)?(0|[1-9][0-9]{0,8})", path)
    return None if found is None else int(found[1])
