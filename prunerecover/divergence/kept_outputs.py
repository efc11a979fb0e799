"""The dense network's outputs on calibration batches, for all that is compared with them."""

from __future__ import annotations

from collections.abc import Callable

from prunerecover.divergence.outputs import Outputs

MOST_KEPT = 1 << 30  # bytes


class KeptOutputs:
    """Outputs by number of their batch, kept while there is room; others are computed anew each time.

    >>> import torch
    >>> outputs = KeptOutputs(lambda number: torch.full((1, 2), number))
    >>> outputs.of(3)
    tensor([[3, 3]])

    Args:
        compute: Returns the output on a batch, given its number.
    """

    def __init__(self, compute: Callable[[int], Outputs]) -> None:
        self._compute, self._room = compute, MOST_KEPT
        self._kept: dict[int, Outputs] = {}

    def of(self, number: int) -> Outputs:
        """Return the output on one batch."""
        if number in self._kept:
            return self._kept[number]
        output = self._compute(number)
        self.keep(number, output)
        return output

    def keep(self, number: int, output: Outputs) -> None:
        """Keep an output that is known already, if there is room."""
        if output.nbytes <= self._room:
            self._room -= output.nbytes
            self._kept[number] = output
