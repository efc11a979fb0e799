"""Stations: places in a network where a walk fits values, and the rows seen there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.graph.computation_graph import ComputationGraph
from prunerecover.graph.trace import trace_graph
from prunerecover.library.variants import LibrarySite
from prunerecover.model.batches import ModelInputs
from prunerecover.model.hashing import is_quantised
from prunerecover.model.hooks import first_tensor, until_reached
from prunerecover.model.linears import is_linear, is_transposed
from prunerecover.model.paths import get_module, is_within
from prunerecover.plan.groups import Slice
from prunerecover.recovery.branch_ends import SumSeen, sum_behind


@dataclass(frozen=True)
class Station:
    """Branch with a linear last layer that adds to a stream, perhaps through a LayerScale.

    Attributes:
        site: Name of the site; the reader's path at the end of a block whose branches are no sites.
        entry: Path of the module that takes the branch's input; a replacement of the branch stands there.
        reader: Path of the last linear, the reader of the site's groups.
        total: Index of the addition to the stream, in the graph of the pass that found the station.
    """

    site: str
    entry: str
    reader: str
    total: int


@dataclass(frozen=True)
class Seen:
    """Rows of one batch at a station: `(rows, features)` each.

    Attributes:
        entered: Input of the branch.
        read: Input of the last layer.
        given: Output of the branch, as added to the stream.
        total: Stream after the addition of the branch's output.
        scale: LayerScale of the last layer's outputs `(features,)`, which goes with the branch, or None.
        factor: Number that multiplies the branch's output in the code around, whatever the branch is.
    """

    entered: Tensor
    read: Tensor
    given: Tensor
    total: Tensor
    scale: Tensor | None = None
    factor: float = 1.0


def graph_of_few(model: nn.Module, inputs: ModelInputs) -> ComputationGraph:
    """Return the graph of a network on two samples: with one, broadcast operands of a sum have the shape of full ones.

    Args:
        model: Dense network, in evaluation mode.
        inputs: Batch; of a single sample, if there are no more.
    """
    return trace_graph(model, inputs.select(torch.arange(min(2, inputs.n_samples))))


def stations_of(model: nn.Module, graph: ComputationGraph, sites: Sequence[LibrarySite]) -> tuple[Station, ...]:
    """Return the stations of a network, in order of execution: one for each branch, and one at the end of each block.

    Args:
        model: Dense network, in evaluation mode.
        graph: Computation graph of the network; see `graph_of_few`.
        sites: Sites.
    """
    found = dict[str, Station]()
    for site in sorted(sites, key=lambda site: site.kind == "block"):
        reader, entry = _reader(model, graph, site), _entry(graph, site)
        total = sum_behind(graph, reader) if reader else None
        if total is None or reader in found:
            continue
        is_block = site.kind == "block"
        if entry or is_block:
            found[reader] = Station(reader if is_block else site.name, reader if is_block else entry, reader, total)
    return tuple(sorted(found.values(), key=lambda station: graph.first_in[station.entry]))


def is_read(model: nn.Module, part: Slice) -> bool:
    """Whether a slice holds the inputs of a linear."""
    module = get_module(model, part.tensor.rpartition(".")[0])
    return not part.makes and is_linear(module) and part.dim == (0 if is_transposed(module) else 1)


def _entry(graph: ComputationGraph, site: LibrarySite) -> str:
    """Return the module where a site begins, if called once in a pass; else an empty path."""
    paths = [site.unit.name] if site.unit else [path for path in site.modules if path in graph.first_in]
    first = min(paths, key=lambda path: graph.first_in.get(path, len(graph.nodes)), default="")
    return first if graph.times[first] == 1 and first in graph.first_in else ""


def _reader(model: nn.Module, graph: ComputationGraph, site: LibrarySite) -> str:
    """Return the linear that reads a site's groups, or the last linear of the unit; an empty path without either."""
    reads = {p.tensor.rpartition(".")[0] for group in site.groups for p in group.slices if is_read(model, p)}
    if site.unit is not None and not reads:
        within = (site.unit.name, *site.unit.targets)
        reads = {path for path in graph.times if any(is_within(path, own) for own in within)}
    plain = [path for path in reads if graph.times[path] == 1 and _is_plain(get_module(model, path))]
    if site.groups and len(plain) > 1:
        return ""
    return max(plain, key=lambda path: graph.first_in.get(path, -1), default="")


def _is_plain(module: nn.Module) -> bool:
    """Whether a module is a linear that can get new values."""
    return is_linear(module) and not any(map(is_quantised, module.parameters()))


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
    entered, read, given, total = (_rows(seen[name]) for name in ("entered", "read", "given", "sum"))
    scale, factor = seen["scale"].detach().flatten() if "scale" in seen else None, float(seen.get("factor", 1.0))
    return Seen(entered, read, given, total, scale, factor)


def _rows(x: Tensor) -> Tensor:
    return x.detach().reshape(-1, x.shape[-1])
