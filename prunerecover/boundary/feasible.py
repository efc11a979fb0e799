"""The splits that a budget of BoundaryDPT allows, and further ones if what units leave costs too much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prunerecover.boundary.designs import ROUNDING, Split, affordable_splits, feasible_splits
from prunerecover.depth.family_planner import FamilyPlanner
from prunerecover.depth.search.selection import count_by_kind
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan

TYPES = ("attention", "activation")
CLOCK = 0.02  # shares of latency below this cannot be told apart


def layers_of(planner: FamilyPlanner) -> tuple[int, int]:
    """Return how many attentions and activations a planner has to choose from.

    Raises:
        ValueError: If it has none of a type.
    """
    attention, activation = (count_by_kind(planner.units).get(kind, 0) for kind in TYPES)
    if not attention or not activation:
        raise ValueError(
            f"Expected attentions and activations to choose from, but got {attention} and {activation} that may go. "
            "Ignore fewer, or plan a single type with plan_depth."
        )
    return attention, activation


@dataclass(frozen=True)
class Feasible:
    """What a budget allows.

    Attributes:
        splits: (attentions, activations) removed.
        more: Takes the plan of the picked split; returns the splits to take one of instead, all beyond it, if it
            removes too little, and none if it is enough.
    """

    splits: tuple[Split, ...]
    more: Callable[[Plan], tuple[Split, ...]] = lambda plan: ()


def feasible_within(
    planner: FamilyPlanner, budget: Budget | None = None, *, n_remove: int | None = None, n_keep: int | None = None
) -> Feasible:
    """Return the feasible splits of a budget: exactly one of `budget`, `n_remove` and `n_keep`.

    Args:
        planner: With attentions and activations to choose from; the splits count those.
        budget: A share of the MACs, the parameters or the latency, measured per type on half of its units.
        n_remove: Number of units to remove, both types together.
        n_keep: Number of units to keep, both types together.

    Raises:
        ValueError: If not exactly one budget is given, or it cannot be met.
    """
    layers = layers_of(planner)
    if budget is None:
        return Feasible(feasible_splits(layers, n_remove=n_remove, n_keep=n_keep))
    if budget.share is None or n_remove is not None or n_keep is not None:
        raise ValueError(
            "Expected exactly one of n_remove, n_keep and a share of macs, params or latency, but got "
            f"n_remove={n_remove}, n_keep={n_keep}, {budget.to_dict()}. Units per type are what is searched for."
        )
    cost, share = budget.share
    attention, activation = (planner.share_of_one(kind, cost) for kind in TYPES)
    slack = CLOCK if cost == "latency" else 0.0
    line = CostLine(layers, attention, activation, share, lambda plan: planner.removed_share(plan, cost), slack)
    return Feasible(line.splits, line.more)


@dataclass(frozen=True)
class CostLine:
    """The splits that meet a share of cost if what single units save adds up; beyond it, if a plan then saves less.

    What units leave costs something, and a clock does not add up exactly.

    Args:
        layers: See `affordable_splits`.
        attention_share: See `affordable_splits`.
        activation_share: See `affordable_splits`.
        share: Of the cost that has to go.
        removed: Measures the share that goes with a plan.
        slack: By how much that may fall short.
    """

    layers: tuple[int, int]
    attention_share: float
    activation_share: float
    share: float
    removed: Callable[[Plan], float]
    slack: float = 0.0

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that meet the share by addition."""
        return affordable_splits(self.layers, self.attention_share, self.activation_share, self.share)

    def more(self, plan: Plan) -> tuple[Split, ...]:
        """Return the splits that save more than a plan's by what it falls short; none if it meets the share.

        Raises:
            ValueError: If nothing is left to remove.
        """
        short = self.share - self.removed(plan)
        if short <= self.slack + ROUNDING:
            return ()
        units = tuple(len(plan.removed.get(kind, ())) for kind in TYPES)
        if units == self.layers:
            raise ValueError(
                f"Expected a budget that removing everything meets, but got {self.share} and {self.share - short:.3f} "
                "of the cost gone: what is left in place of the units costs, too. Lower it, or leave less in their "
                'place: replace="identity".'
            )
        one = (self.attention_share, self.activation_share)
        added, most = (sum(n * saved for n, saved in zip(ns, one, strict=True)) for ns in (units, self.layers))
        return affordable_splits(self.layers, *one, budget=min(added + short, most))
