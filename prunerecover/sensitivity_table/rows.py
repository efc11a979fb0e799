"""Rows of the table of sensitivity: a unit of depth, or a group of channels, heads, neurons or experts."""

from __future__ import annotations

from dataclasses import dataclass

PARTS = (0.25, 0.5, 0.75)  # shares of a group's units


@dataclass(frozen=True)
class UnitRow:
    """One unit of depth.

    Attributes:
        name: Name in plans.
        kind: Kind, "block", "attention", "mlp", "activation" or "layer".
        params: Share of the network's parameters saved without the unit, after merging.
        macs: Share of the network's MACs saved without the unit, after merging.
        divergence: Divergence of the output with the best replacement of the unit; infinite if the unit must stay.
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
        name: Name in plans.
        kind: Kind, "channel", "head", "neuron", "expert" or "hidden".
        size: Number of units.
        params: Share of the network's parameters saved without half of the units.
        macs: Share of the network's MACs saved without half of the units.
        held: Shares of the importance of all groups in the group's lowest quarter, half and three quarters (`PARTS`).
    """

    name: str
    kind: str
    size: int
    params: float
    macs: float
    held: tuple[float, ...]
