"""The load of a language model in service, at which its memory is counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Serving:
    """Load of a model in service.

    Attributes:
        batch: Number of sequences at once.
        tokens: Length of each sequence.
    """

    batch: int
    tokens: int
