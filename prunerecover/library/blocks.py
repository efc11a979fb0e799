"""Blocks between stations: if a block goes, the layer before learns to lead to the stream behind the block."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from prunerecover.graph.computation_graph import ComputationGraph
from prunerecover.library.stations import Station
from prunerecover.library.variants import LibrarySite
from prunerecover.model.paths import is_within


@dataclass(frozen=True)
class Blocks:
    """Blocks with a station in front and a station at the end, both on one stream.

    Attributes:
        around: Numbers of the station before a block, and of the block's last station, by the block's site.
    """

    around: Mapping[str, tuple[int, int]]

    def aim(self, station: int, gone: Collection[str]) -> int:
        """Return the station whose dense stream a station leads to: its own, or that behind removed blocks.

        Args:
            station: Number of a station that is not inside a removed block.
            gone: Removed blocks.
        """
        block = self.behind(station, gone)
        return station if not block else self.aim(self.around[block][1], gone)

    def behind(self, station: int, gone: Collection[str]) -> str:
        """Return the removed block right behind a station; empty without one."""
        return next((block for block, (before, _) in self.around.items() if before == station and block in gone), "")

    def aims(self, station: int, gone: Collection[str]) -> tuple[int, ...]:
        """Return the aims of a station with the removed blocks, and with one block more or less."""
        choices = [set(gone), *(set(gone) ^ {block} for block in self.around)]
        return tuple(dict.fromkeys(self.aim(station, choice) for choice in choices))


def blocks_of(graph: ComputationGraph, sites: Sequence[LibrarySite], stations: Sequence[Station]) -> Blocks:
    """Return the blocks between stations.

    A block's input has to be the stream behind a station, and the block's output the stream behind another, in both
    cases perhaps past a norm (networks with norms behind the additions).

    Args:
        graph: Graph in which the stations were found.
        sites: Sites; those of other kinds than blocks are left out.
        stations: Stations in order of execution.
    """
    numbers = {station.total: number for number, station in enumerate(stations)}
    found = {}
    for site in sites:
        if site.kind != "block" or site.unit is None or graph.times[site.unit.name] != 1:
            continue
        call = next(n for n, call in enumerate(graph.calls) if call.path == site.unit.name)
        entered, last = graph.entered[call], max(graph.inside[call], default=-1)
        before = numbers.get(_stream(graph, entered.node)) if entered is not None else None
        end = numbers.get(_stream(graph, last))
        if before is not None and end is not None and is_within(stations[end].reader, site.unit.name):
            found[site.name] = before, end
    return Blocks(found)


def _stream(graph: ComputationGraph, index: int) -> int:
    """Return the node whose output another node passes on, or normalises."""
    node = graph.nodes[index]
    passes_on = node.kind in ("identity", "norm", "movement") and len(node.inputs) == 1
    return _stream(graph, node.inputs[0].node) if passes_on else index
