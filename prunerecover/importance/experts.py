"""Importances of routed experts alone: the routing frequency, and REAP (arXiv 2510.13999)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prunerecover.importance.context import Context
from prunerecover.importance.measuring.activations import TapCall
from prunerecover.importance.measuring.routed import Routed
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.importance.streaming import OnePass, StreamedImportance
from prunerecover.plan.groups import Group, Tap


@StreamedImportance
def routing(context: Context) -> RoutingShare:
    """Score experts by the share of tokens routed to each expert, padding left out. High means keep.

    The shares of a layer add up to the number of experts per token.

    Raises:
        ValueError: If a group has no routed experts.
    """
    return RoutingShare(context.require_groups("routing"), "routing")


@StreamedImportance
def reap(context: Context) -> RouterWeightedActivation:
    """Score experts by the mean of |w| ||f(x)|| over the tokens x routed to the expert: REAP (arXiv 2510.13999).

    f(x) is the output of the expert, and w the routing weight, normalised over the experts of a token if the layer
    normalises. High means keep. Padding is left out; an expert without tokens scores 0.

    Raises:
        ValueError: If a group has no routed experts.
    """
    return RouterWeightedActivation(context.require_groups("reap"), "reap")


@StreamedImportance
def reap_normalised(context: Context) -> RouterWeightedActivation:
    """Score experts as `reap`, by routing weights that add up to one for each token, whatever the layer does.

    Raises:
        ValueError: If a group has no routed experts.
    """
    return RouterWeightedActivation(context.require_groups("reap_normalised"), "reap_normalised", normalised=True)


class RoutingShare(OnePass):
    """Count of the tokens routed to each expert.

    Args:
        groups: Groups of experts.
        importance: Name of the importance, for messages.
    """

    def __init__(self, groups: Sequence[Group], importance: str) -> None:
        for group in groups:
            if not any(tap.of == "routing" for tap in group.taps):
                raise ValueError(
                    f"Expected routed experts for '{importance}', but '{group.name}' is a group of kind "
                    f"'{group.kind}'. Pass kinds=('expert',), or choose another importance."
                )
        self.visits = {group.name: torch.zeros(group.size, dtype=torch.float64) for group in groups}
        self.tokens = dict.fromkeys(self.visits, 0)

    def watches(self, group: Group, tap: Tap) -> bool:
        """Whether a tap shows the choices of a router."""
        return tap.of == "routing"

    def route(self, tap_call: TapCall, routed: Routed) -> None:
        """Add a batch."""
        self.visits[tap_call.group] += routed.visits().cpu()
        self.tokens[tap_call.group] += int((~routed.padding).sum())

    def scores(self) -> Scores:
        """Return the shares."""
        return {name: visits / max(self.tokens[name], 1) for name, visits in self.visits.items()}


class RouterWeightedActivation(RoutingShare):
    """Sums of the norms of each expert's weighted output, beside the counts of tokens.

    Args:
        groups: Groups of experts.
        importance: Name of the importance, for messages.
        normalised: Whether routing weights are divided by their sum over the experts of a token.
    """

    def __init__(self, groups: Sequence[Group], importance: str, *, normalised: bool = False) -> None:
        super().__init__(groups, importance)
        self.normalised = normalised
        self.norms = {name: torch.zeros_like(visits) for name, visits in self.visits.items()}

    def route(self, tap_call: TapCall, routed: Routed) -> None:
        """Add a batch."""
        super().route(tap_call, routed)
        self.norms[tap_call.group] += (routed.normalised() if self.normalised else routed).norms().cpu()

    def scores(self) -> Scores:
        """Return the mean norm per routed token."""
        return {name: norms / self.visits[name].clamp(min=1) for name, norms in self.norms.items()}
