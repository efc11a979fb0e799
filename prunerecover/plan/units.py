"""Sites, the places in a network that may be smaller; units of depth, the smallest parts to remove alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from prunerecover.plan.kinds import Kind


class Site:
    """A place in a network that may be smaller: a unit of depth, removed as a whole, or a group of units of width.

    Attributes:
        name: Canonical path, used in plans and `ignore`.
        kind: Kind of the units: block, attention, channel, head and so on.
        size: Number of units; 1 for a unit of depth.
        params: Parameters of all units together.
        macs: MACs of all units together per example batch; 0 if found without an example.
        block: Path of the block at or around the site; empty outside blocks and across several.
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
    """A unit of depth, removable alone.

    Attributes:
        name: Canonical path, see `Site`.
        kind: Kind: "block", "attention", "mlp", "activation" or "layer".
        targets: Paths of the changed modules; for an activation, the activation and the linears around it.
        params: Parameters saved by the removal (activations: once the two linears have merged).
        macs: MACs per example batch saved by the removal (activations: once merged); 0 if found without an example.
        block: Path of the block, see `Site`.
        size: Number of units, 1.
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
    """Return the names of some units, as a set."""
    return frozenset(unit.name for unit in units)


def number_of_block(path: str) -> int | None:
    """Return the number at the end of a path; None without a number, or with leading zeros.

    >>> number_of_block("blocks.3"), number_of_block("blocks.x"), number_of_block("blocks.03")
    (3, None, None)
    """
    found = re.fullmatch(r"(?:.*\.)?(0|[1-9][0-9]{0,8})", path)
    return None if found is None else int(found[1])
