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
    """Score experts by the share of tokens that visit them, padding left out. High means keep.

    A layer's shares add up to the number of experts that each token visits.

    Raises:
        ValueError: If a group is not one of routed experts.
    """
    return RoutingShare(context.require_groups("routing"), "routing")


@StreamedImportance
def reap(context: Context) -> RouterWeightedActivation:
    """Score experts by the mean of |w| ||f(x)|| over the tokens x that visit them: REAP (arXiv 2510.13999).

    f(x) is what the expert puts out, and w what the layer multiplies it by, normalised over a token's experts if the
    layer does so. High means keep. Padding is left out; an expert that no token visits has 0.

    Raises:
        ValueError: If a group is not one of routed experts.
    """
    return RouterWeightedActivation(context.require_groups("reap"), "reap")


class RoutingShare(OnePass):
    """Counts how many tokens visit each expert.

    Args:
        groups: Of experts.
        importance: What asks for it, for messages.
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
        """Whether a tap shows what a router chooses."""
        return tap.of == "routing"

    def route(self, tap_call: TapCall, routed: Routed) -> None:
        """Add a batch."""
        self.visits[tap_call.group] += routed.visits().cpu()
        self.tokens[tap_call.group] += int((~routed.padding).sum())

    def scores(self) -> Scores:
        """Return the shares."""
        return {name: visits / max(self.tokens[name], 1) for name, visits in self.visits.items()}


class RouterWeightedActivation(RoutingShare):
    """Adds up the norms of what each expert adds, too."""

    def __init__(self, groups: Sequence[Group], importance: str) -> None:
        super().__init__(groups, importance)
        self.norms = {name: torch.zeros_like(visits) for name, visits in self.visits.items()}

    def route(self, tap_call: TapCall, routed: Routed) -> None:
        """Add a batch."""
        super().route(tap_call, routed)
        self.norms[tap_call.group] += routed.norms().cpu()

    def scores(self) -> Scores:
        """Return the means over visits."""
        return {name: norms / self.visits[name].clamp(min=1) for name, norms in self.norms.items()}
