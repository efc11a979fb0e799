"""Planners with a scored library, shared by several tests."""

from __future__ import annotations

from functools import cache

from cases.planning.networks import images, vit

from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.planner import Planner
from prunerecover.session.session import Session


@cache
def vit_planner() -> Planner:
    """Return the planner of a tiny ViT of two blocks, with a scored library."""
    planner = Planner(Session(vit(depth=2), images(6)), "macs", PruningConfig())
    with planner.session.evaluating():
        assert planner.library.scored
    return planner
