"""Refusals: errors for impossible requests, with a cause and a way out."""

from __future__ import annotations

from typing import NamedTuple


class Stay(NamedTuple):
    """Reason why units of a network cannot be removed.

    Attributes:
        name: Path of the units' module.
        by: Obstacle, as a phrase.
        way_out: Remedy, a sentence without the full stop.
    """

    name: str
    by: str
    way_out: str


class Refusal(ValueError):
    """Impossible request on an otherwise sound network.

    Args:
        expected: Condition, a phrase after "Expected".
        cause: Actual state, a clause after "but".
        way_out: Remedy, in full sentences.

    >>> print(Refusal("a gate", "there is none", "Remove the MLP."))
    Expected a gate, but there is none. Remove the MLP.
    """

    def __init__(self, expected: str, cause: str, way_out: str) -> None:
        assert all((expected, cause, way_out)), "a refusal names what was expected, the cause and a way out"
        super().__init__(expected, cause, way_out)
        self.expected, self.cause, self.way_out = expected, cause, way_out

    def __str__(self) -> str:
        return f"Expected {self.expected}, but {self.cause}. {self.way_out}"
