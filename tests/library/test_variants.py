"""Variants of sites: the scores of sizes that are not scored, and which sites lie inside others."""

from __future__ import annotations

import pytest
from cases.planning.networks import images, vit

from prunerecover.library.variants import DENSE, LibrarySite, Variant
from prunerecover.plan.groups import Group, Slice
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.planner import Planner
from prunerecover.session.session import Session


def test_modules_of_a_site_have_one_order_in_every_process() -> None:
    """What sites share is told by their parameters in order, and results in a store by what sites share."""
    paths = [f"layer{number}" for number in range(20)]
    slices = tuple(Slice(tensor=f"{path}.weight", dim=0) for path in paths)
    group = Group(name="layers", kind="channel", size=4, slices=slices)
    site = LibrarySite("layers", "channel", None, (group,), (Variant(DENSE),))
    assert site.modules == tuple(paths)


@pytest.mark.slow
def test_sizes_are_multiples_that_were_asked_for_and_choosing_nothing_changes_nothing() -> None:
    config = PruningConfig(kinds=("attention", "neuron"), round_to=16)
    planner = Planner(Session(vit(depth=2), images()), "macs", config)
    library = planner.library
    for site in library.sites.values():
        assert site.variants[0].name == DENSE
        for variant in site.variants:
            for group in site.groups:
                assert (group.size - len(variant.removed.get(group.name, ()))) % 16 == 0
    assert library.scorer.divergence({}) == pytest.approx(0, abs=1e-6)
