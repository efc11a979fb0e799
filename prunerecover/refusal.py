"""A refusal: the error of what cannot be done to a network, with its cause and a way out."""

from __future__ import annotations

from typing import NamedTuple


class Stay(NamedTuple):
    """What keeps units of a network from going.

    Attributes:
        name: Path of the module that would make them.
        by: What keeps them.
        way_out: What to do about it, a sentence without its full stop.
    """

    name: str
    by: str
    way_out: str


class Refusal(ValueError):
    """What cannot be done to a network that is sound otherwise.

    Args:
        expected: What it would have to be, a phrase that follows "Expected".
        cause: What it is instead, a clause that follows "but".
        way_out: One sentence or more that say what to do now.

    >>> print(Refusal("a gate", "there is none", "Remove the MLP."))
    Expected a gate, but there is none. Remove the MLP.
    """

    def __init__(self, expected: str, cause: str, way_out: str) -> None:
        assert all((expected, cause, way_out)), "a refusal names what was expected, the cause and a way out"
        super().__init__(expected, cause, way_out)
        self.expected, self.cause, self.way_out = expected, cause, way_out

    def __str__(self) -> str:
        return f"Expected {self.expected}, but {self.cause}. {self.way_out}"
