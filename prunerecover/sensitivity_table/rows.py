"""Rows of the table of sensitivity: a unit of depth, or a group of channels, heads, neurons or experts."""

from __future__ import annotations

from dataclasses import dataclass

PARTS = (0.25, 0.5, 0.75)  # of a group's units


@dataclass(frozen=True)
class UnitRow:
    """One unit of depth.

    Attributes:
        name: What plans name.
        kind: "block", "attention", "mlp", "activation" or "layer".
        params: Share of the network's parameters that goes with it, merged.
        macs: Share of its MACs, likewise.
        divergence: Of the output without it, with the best that can stand in its place; infinite if it cannot go.
    """

    name: str
    kind: str
    params: float
    macs: float
    divergence: float


@dataclass(frozen=True)
class GroupRow:
    """One group of width.

    Attributes:
        name: What plans name.
        kind: "channel", "head", "neuron", "expert" or "hidden".
        size: How many units it has.
        params: Share of the network's parameters that goes with half of its units.
        macs: Share of its MACs, likewise.
        held: Share of the importance of all groups that its lowest quarter, half and three quarters hold (`PARTS`).
    """

    name: str
    kind: str
    size: int
    params: float
    macs: float
    held: tuple[float, ...]
