"""Amounts of a cost left after pruning, with units."""

from __future__ import annotations

import re

from prunerecover.cost.units.cost_names import COSTS

AMOUNT = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)")


def amount(cost: str, text: str) -> float:
    """Return an amount as a number: of operations, of parameters, of seconds or of bytes.

    >>> amount("macs", "0.8G"), amount("latency", "5 ms")
    (800000000.0, 0.005)

    Args:
        cost: Name of the cost.
        text: Number and unit.

    Raises:
        ValueError: If the number is zero, or the unit is missing or not a unit of the cost.
    """
    words, found = COSTS[cost], AMOUNT.fullmatch(text)
    if found is None or found[2] not in words.units or not float(found[1]):
        raise ValueError(
            f"Expected argument {cost} to be a removed share, such as 0.3, or what may be left, a number above 0 with "
            f"one of the units {', '.join(words.units)}, but got '{text}'. For example '{words.example}'."
        )
    return float(found[1]) * words.units[found[2]]


def shown(cost: str, number: float) -> str:
    """Return an amount in the largest unit with a number of at least 1.

    >>> shown("params", 5_700_000), shown("latency", 0.0031)
    ('5.7M', '3.1ms')
    """
    words = COSTS[cost].units.items()
    units = {size: unit for unit, size in reversed([*words]) if "i" not in unit}  # the first among equal units
    size = max((size for size in units if size <= number), default=min(units))
    return f"{number / size:.3g}{units[size]}"
