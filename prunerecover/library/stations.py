"""Stations: places in a network where a walk fits values, and the rows seen there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.graph.computation_graph import ComputationGraph
from prunerecover.library.variants import LibrarySite
from prunerecover.model.batches import ModelInputs
from prunerecover.model.hooks import first_tensor, until_reached
from prunerecover.model.paths import get_module, is_within
from prunerecover.recovery.branch_ends import NO_NORM, SumSeen, branch_ends

LARGEST = 4096  # input features of a reader; second moments of more would not fit into memory


@dataclass(frozen=True)
class Station:
    """Branch with a linear last layer that adds to a stream.

    Attributes:
        site: Name of the site.
        entry: Path of the module that takes the branch's input; a replacement of the branch stands there.
        reader: Path of the last linear, the reader of the site's groups.
    """

    site: str
    entry: str
    reader: str


@dataclass(frozen=True)
class Seen:
    """Rows of one batch at a station: `(rows, features)` each.

    Attributes:
        entered: Input of the branch.
        read: Input of the last layer.
        given: Output of the branch.
        total: Stream after the addition of the branch's output.
    """

    entered: Tensor
    read: Tensor
    given: Tensor
    total: Tensor


def stations_of(
    model: nn.Module, graph: ComputationGraph, sites: Sequence[LibrarySite], some: ModelInputs
) -> tuple[Station, ...]:
    """Return the stations of a network, in order of execution.

    Args:
        model: Dense network, in evaluation mode.
        graph: Computation graph of the network.
        sites: Sites.
        some: Few samples, more than one if available.
    """
    readers = {site.name: _reader(model, graph, site) for site in sites}
    ends = branch_ends(model, [path for path in readers.values() if path], some)
    found = []
    for site in sites:
        reader, entry = readers[site.name], _entry(graph, site)
        if entry and ends.get(reader) == NO_NORM:
            found.append(Station(site.name, entry, reader))
    return tuple(sorted(found, key=lambda station: graph.first_in[station.entry]))


def _entry(graph: ComputationGraph, site: LibrarySite) -> str:
    """Return the module where a site begins, if called once in a pass; else an empty path."""
    paths = [site.unit.name] if site.unit else [path for path in site.modules if path in graph.first_in]
    first = min(paths, key=lambda path: graph.first_in.get(path, len(graph.nodes)), default="")
    return first if graph.times[first] == 1 and first in graph.first_in else ""


def _reader(model: nn.Module, graph: ComputationGraph, site: LibrarySite) -> str:
    """Return the linear that reads a site's groups, or the last linear of the unit; an empty path without either."""
    if site.kind == "block":
        return ""
    reads = {p.tensor.rpartition(".")[0] for group in site.groups for p in group.slices if not p.makes and p.dim == 1}
    if site.unit is not None and not reads:
        reads = {path for path in graph.times if is_within(path, site.unit.name)}
    plain = [path for path in reads if graph.times[path] == 1 and type(get_module(model, path)) is nn.Linear]
    if site.groups and len(plain) > 1:
        return ""
    last = max(plain, key=lambda path: graph.first_in.get(path, -1), default="")
    return last if last and get_module(model, last).in_features <= LARGEST else ""  # type: ignore[operator]


def seen_at(passes: FrontToBack, station: Station, inputs: ModelInputs) -> Seen | None:
    """Return the rows of a batch at a station, where the pass ends; None if the station is not reached.

    Args:
        passes: Passes through a network; modules before the station stay unchanged.
        station: Station.
        inputs: One of the batches.
    """
    seen: dict[str, Tensor] = {}

    def enter(name: str) -> Any:
        return lambda _, args, kwargs: seen.update({name: first_tensor(args, kwargs)})

    entry, reader = (get_module(passes.network, path) for path in (station.entry, station.reader))
    handles = (
        entry.register_forward_pre_hook(enter("entered"), with_kwargs=True),
        reader.register_forward_pre_hook(enter("read"), with_kwargs=True),
        reader.register_forward_hook(lambda _, __, output: seen.update(given=output)),
    )
    with until_reached(*handles), SumSeen(seen):
        passes.run(inputs, station.entry)
    if "sum" not in seen:
        return None
    return Seen(*(_rows(seen[name]) for name in ("entered", "read", "given", "sum")))


def _rows(x: Tensor) -> Tensor:
    return x.detach().reshape(-1, x.shape[-1])
