"""Outputs of the dense network on calibration batches, kept for all comparisons."""

from __future__ import annotations

from collections.abc import Callable

from prunerecover.divergence.outputs import Outputs

MOST_KEPT = 1 << 30  # bytes


class KeptOutputs:
    """Outputs by number of the batch, kept while there is room; the rest is computed anew each time.

    >>> import torch
    >>> outputs = KeptOutputs(lambda number: torch.full((1, 2), number))
    >>> outputs.of(3)
    tensor([[3, 3]])

    Args:
        compute: Function from the number of a batch to the output.
    """

    def __init__(self, compute: Callable[[int], Outputs]) -> None:
        self._compute, self._room = compute, MOST_KEPT
        self._kept: dict[int, Outputs] = {}

    def of(self, number: int) -> Outputs:
        """Return the output on a batch."""
        if number in self._kept:
            return self._kept[number]
        output = self._compute(number)
        self.keep(number, output)
        return output

    def keep(self, number: int, output: Outputs) -> None:
        """Keep a known output, if there is room."""
        if output.nbytes <= self._room:
            self._room -= output.nbytes
            self._kept[number] = output
