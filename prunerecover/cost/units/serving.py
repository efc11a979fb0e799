"""Load of a language model in service, for counting memory."""

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
