"""Names of the costs of budgets, with titles and units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

CostName = Literal["macs", "params", "latency", "memory", "checkpoint", "active_params"]
ALONE = ("macs", "params", "latency")  # costs accepted in planning of depth or of width alone
COUNTS: Mapping[str, float] = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
PARAMETERS = {**COUNTS, "B": 1e9}
BYTES = {
    **{f"{unit}B": size for unit, size in COUNTS.items()},
    **{f"{unit}iB": 2.0 ** (10 * power) for power, unit in enumerate(COUNTS, 1)},
}


@dataclass(frozen=True)
class CostWords:
    """Words for a cost.

    Attributes:
        title: Name in tables.
        units: Units of amounts, each with its size.
        example: Example of an amount.
        per: Words for the base of an amount; empty for the network as a whole.
    """

    title: str
    units: Mapping[str, float]
    example: str
    per: str = ""


COSTS: Mapping[str, CostWords] = {
    "macs": CostWords("MACs", COUNTS, "0.8G", " a sample"),
    "params": CostWords("parameters", PARAMETERS, "100M"),
    "latency": CostWords("latency", {"us": 1e-6, "ms": 1e-3, "s": 1.0}, "5ms", " for the first batch"),
    "memory": CostWords("memory", BYTES, "6GB"),
    "checkpoint": CostWords("checkpoint", BYTES, "500MB"),
    "active_params": CostWords("active parameters", PARAMETERS, "3B"),
}


def titled(costs: str | Sequence[str]) -> str:
    """Return costs in words.

    >>> titled("macs"), titled(("latency", "params"))
    ('MACs', 'latency and parameters')
    """
    return " and ".join(COSTS[cost].title for cost in ((costs,) if isinstance(costs, str) else costs))
