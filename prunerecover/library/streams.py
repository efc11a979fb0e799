"""Streams of the dense network behind stations: wanted by fits, kept while there is room."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.divergence.kept_outputs import MOST_KEPT
from prunerecover.library.stations import Station, seen_at
from prunerecover.model.batches import ModelInputs


class DenseStreams:
    """Streams by number of station and batch, read in order of execution.

    Streams for which there is no room are computed again in each walk, and kept until the walk has passed.

    Args:
        model: Dense network, in evaluation mode.
        stations: Stations in order of execution.
        batches: Calibration samples on the model's device.
    """

    def __init__(self, model: nn.Module, stations: Sequence[Station], batches: Sequence[ModelInputs]) -> None:
        self._model, self._stations, self._batches = model, stations, batches
        self._kept: dict[int, list[Tensor | None]] = {}
        self._passing: dict[int, list[Tensor | None]] = {}
        self._room, self._next = MOST_KEPT, 0
        self._passes: FrontToBack | None = None

    def begin(self) -> None:
        """Begin a walk."""
        self._passing, self._next, self._passes = {}, 0, None

    def of(self, station: int) -> list[Tensor | None]:
        """Return the streams behind a station, by batch; None for a batch that does not reach the station."""
        while self._next <= station:
            if self._next not in self._kept:
                self._compute(self._next)
            self._next += 1
        return self._kept[station] if station in self._kept else self._passing[station]

    def leave(self, station: int) -> None:
        """Give up a station that the walk has passed."""
        self._passing.pop(station, None)

    def _compute(self, station: int) -> None:
        if self._passes is None:
            self._passes = FrontToBack(self._model, self._batches)
        seen = [seen_at(self._passes, self._stations[station], inputs) for inputs in self._batches]
        totals = [None if one is None else one.total for one in seen]
        size = sum(total.nbytes for total in totals if total is not None)
        into = self._kept if size <= self._room else self._passing
        into[station] = totals
        self._room -= size if into is self._kept else 0
