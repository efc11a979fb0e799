"""Streams of the dense network behind stations: wanted by fits, kept while there is room."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.divergence.kept_outputs import MOST_KEPT
from prunerecover.library.stations import Station, seen_at
from prunerecover.model.batches import ModelInputs

Place = tuple[int, int]  # numbers of a station and of a batch


class DenseStreams:
    """Streams by number of station and batch, each batch's read in order of execution.

    Streams for which there is no room are computed again in each walk, and kept until the walk has passed.

    Args:
        model: Dense network, in evaluation mode.
        stations: Stations in order of execution.
        batches: Calibration samples on the model's device.
    """

    def __init__(self, model: nn.Module, stations: Sequence[Station], batches: Sequence[ModelInputs]) -> None:
        self._model, self._stations, self._batches = model, stations, batches
        self._kept: dict[Place, Tensor | None] = {}
        self._passing: dict[Place, Tensor | None] = {}
        self._room, self._next = MOST_KEPT, dict[int, int]()
        self._passes: FrontToBack | None = None

    def begin(self) -> None:
        """Begin a walk."""
        self._passing, self._next, self._passes = {}, {}, None

    def of(self, station: int, batch: int) -> Tensor | None:
        """Return the stream of a batch behind a station; None if the batch does not reach the station."""
        for earlier in range(self._next.get(batch, 0), station + 1):
            if (earlier, batch) not in self._kept:
                self._compute((earlier, batch))
        self._next[batch] = max(self._next.get(batch, 0), station + 1)
        at = station, batch
        return self._kept[at] if at in self._kept else self._passing[at]

    def leave(self, station: int) -> None:
        """Give up a station that the walk has passed."""
        for batch in range(len(self._batches)):
            self._passing.pop((station, batch), None)

    def _compute(self, at: Place) -> None:
        if self._passes is None:
            self._passes = FrontToBack(self._model, self._batches)
        station, batch = at
        seen = seen_at(self._passes, self._stations[station], self._batches[batch])
        total = None if seen is None else seen.total
        size = 0 if total is None else total.nbytes
        into = self._kept if size <= self._room else self._passing
        into[at] = total
        self._room -= size if into is self._kept else 0
