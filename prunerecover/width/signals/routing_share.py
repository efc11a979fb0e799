"""Routing frequency: the share of tokens that visit each expert."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prunerecover.plan.groups import Group, Site
from prunerecover.width.groups.unit_slices import Scores, check_names
from prunerecover.width.signals.activations import SiteCall
from prunerecover.width.signals.context import WidthContext
from prunerecover.width.signals.routed import Routed
from prunerecover.width.signals.streaming import OnePass, StreamedSignal


@StreamedSignal
def routing(context: WidthContext) -> RoutingShare:
    """Score experts by the share of tokens that visit them, padding left out. High means keep.

    A layer's shares add up to the number of experts that each token visits.

    Raises:
        ValueError: If a group is not one of routed experts.
    """
    return RoutingShare(context.groups)


class RoutingShare(OnePass):
    """Counts how many tokens visit each expert."""

    def __init__(self, groups: Sequence[Group]) -> None:
        check_names(groups)
        for group in groups:
            if not any(site.of == "routing" for site in group.sites):
                raise ValueError(
                    f"Expected routed experts for 'routing', but '{group.name}' is a group of kind '{group.kind}'. "
                    "Pass kinds=('expert',), or choose another signal."
                )
        self.visits = {group.name: torch.zeros(group.size, dtype=torch.float64) for group in groups}
        self.tokens = dict.fromkeys(self.visits, 0)

    def watches(self, group: Group, site: Site) -> bool:
        """Whether a site shows what a router chooses."""
        return site.of == "routing"

    def route(self, site_call: SiteCall, routed: Routed) -> None:
        """Add a batch."""
        self.visits[site_call.group] += routed.visits().cpu()
        self.tokens[site_call.group] += int((~routed.padding).sum())

    def scores(self) -> Scores:
        """Return the shares."""
        return {name: visits / max(self.tokens[name], 1) for name, visits in self.visits.items()}
