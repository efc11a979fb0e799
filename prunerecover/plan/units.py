"""Sites, the places in a network that may be smaller; units of depth, the smallest things that can be removed alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from prunerecover.plan.kinds import Kind


class Site:
    """A place in a network that may be smaller: a unit of depth, which goes as a whole, or a group of units of width.

    Attributes:
        name: Canonical path; what plans and `ignore` name it by.
        kind: What goes there: blocks, attentions, channels, heads and so on.
        size: Units in it: 1 of a unit of depth.
        params: Parameters that go with all of it.
        macs: MACs per example batch that go with all of it; 0 if it was found without an example.
        block: Path of the block that it is or is in; empty if it is in none, or reaches across several.
    """

    name: str
    kind: Kind
    size: int
    params: int
    macs: int
    block: str

    @property
    def touches(self) -> tuple[str, ...]:
        """Paths of the modules or tensors that change."""
        raise NotImplementedError


@dataclass(frozen=True)
class Unit(Site):
    """A unit of depth: what can be removed alone.

    Attributes:
        name: See `Site`.
        kind: "block", "attention", "mlp", "activation" or "layer".
        targets: Paths of the modules that change; of an activation its own, and those of the linears around it.
        params: Parameters that go (activations: once the two linears have merged).
        macs: MACs per example batch that go (activations: once merged); 0 if it was found without an example.
        block: See `Site`.
        size: 1.
    """

    name: str
    kind: Kind
    targets: tuple[str, ...]
    params: int
    macs: int = 0
    block: str = ""
    size: int = field(default=1, init=False, repr=False)

    @property
    def touches(self) -> tuple[str, ...]:
        """Paths of the modules that change."""
        return self.targets


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
