"""Variants of sites: the scores of sizes that are not scored, and which sites lie inside others."""

from __future__ import annotations

import pytest
import torch
from cases.planning.networks import images, vit
from torch import Tensor, nn

from prunerecover import Budget, apply_plan, plan_pruning
from prunerecover.library.variants import DENSE, LibrarySite, Variant, containment
from prunerecover.plan.groups import Group, Slice
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.planner import Planner
from prunerecover.session.session import Session


class Plain(nn.Module):
    """Convolutional blocks of one width, with or without a shortcut."""

    def __init__(self, shortcut: bool) -> None:
        super().__init__()
        self.shortcut, self.stem = shortcut, nn.Conv2d(3, 8, 3, padding=1)
        made = (nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1)) for _ in range(3))
        self.blocks, self.head = nn.ModuleList(made), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        for block in self.blocks:
            x = (x + block(x) if self.shortcut else block(x)).relu()
        return self.head(x.mean((2, 3)))


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
    assert library.scorers.alone.divergence({}) == pytest.approx(0, abs=1e-6)


def test_further_budgets_are_expected_to_take_less_by_the_scores_alone() -> None:
    """A quarter of the samples is held out, and half of the network lies behind a variant."""
    planner = Planner(Session(vit(depth=2), images()), "macs", PruningConfig())
    first, sites = planner.unscored.expected_passes, planner.unscored.sites.values()
    scored = sum(variant.scored for site in sites for variant in site.variants if variant.name != DENSE)
    assert first - planner.library.expected_passes == pytest.approx(scored / 4 / 2)


def test_block_without_a_shortcut_stays_where_the_groups_of_its_ends_are_narrowed() -> None:
    batches = [torch.randn(16, 3, 8, 8) for _ in range(3)]
    plain, residual = (Plain(shortcut).eval() for shortcut in (False, True))
    planner = Planner(Session(plain, batches), "macs", PruningConfig())
    ends = {inner for outer, inner in containment([*planner.library.sites.values()]) if outer == "blocks.1"}
    assert ends == {"blocks.0.2", "blocks.1.0", "blocks.1.2"}
    planner = Planner(Session(residual, batches), "macs", PruningConfig())
    assert all(inner.startswith(outer) for outer, inner in containment([*planner.library.sites.values()]))
    plan = plan_pruning(plain, Budget(macs=0.5), batches=batches)
    apply_plan(plain, plan)
    assert plain(batches[0]).shape == (16, 5)
