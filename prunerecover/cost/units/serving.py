"""Service of a network: the load at which memory is counted, and the clock of its latency."""

from __future__ import annotations

from dataclasses import dataclass

from prunerecover.cost.units.clock_names import TORCH, Clock


@dataclass(frozen=True)
class Serving:
    """Service of a network.

    Attributes:
        batch: Number of sequences at once; 0: memory is not counted.
        tokens: Length of each sequence.
        clock: Clock of latencies; see `runtimes.clocks`.
    """

    batch: int = 0
    tokens: int = 0
    clock: str | Clock = TORCH
