"""Layers before removed blocks of a plan, fitted to a network with new weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from prunerecover.calibration.token_weights import row_weights
from prunerecover.depth.layers.removals import Removals
from prunerecover.library.blocks import blocks_of
from prunerecover.library.edits import EditMaker, Fit
from prunerecover.library.moments import Fitted
from prunerecover.library.stations import graph_of_few, stations_of
from prunerecover.library.variants import sites_of
from prunerecover.library.walk import Walks
from prunerecover.session.session import Session


def layers_before_blocks(session: Session, pruned: nn.Module, gone: Collection[str]) -> Mapping[str, Fitted]:
    """Return new parameters of the last layers before removed blocks, by path of the layer.

    Each leads, by least squares, from its present input to the dense stream behind the block or run of blocks.

    Args:
        session: Dense network, in evaluation mode, and samples.
        pruned: Copy of the network with the edits before the removal of blocks.
        gone: Names of the removed blocks in the dense network.
    """
    removals = Removals(session.model, session.traced, ("block",))
    sites = sites_of(removals.units, (), {}, {unit.name: ("zero",) for unit in removals.units})
    maker = EditMaker({site.name: site for site in sites}, None, removals)
    graph = graph_of_few(session.model, session.first)
    stations = stations_of(session.model, graph, sites)
    if not stations:
        return {}
    blocks, batches = blocks_of(graph, sites, stations), session.samples.whole
    weights = row_weights(session.model, [station.reader for station in stations], batches, session.seed)
    walks = Walks(session.model, maker, stations, blocks, batches, weights=weights, start=pruned)
    chosen, _ = walks.walk({block: (maker.sites[block].variant("zero"), Fit()) for block in gone})
    return {path: values for _, fit in chosen.values() for path, values in fit.modules.items()}
