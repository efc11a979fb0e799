"""Feasible splits of a budget of BoundaryDPT, with further splits to make up for the cost of replacements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prunerecover.boundary.designs import ROUNDING, Split, affordable_splits, feasible_splits
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.depth.search.goals import count_by_kind
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan

TYPES = ("attention", "activation")
CLOCK = 0.02  # smallest difference of latency shares that a clock resolves


def layers_of(planner: DepthSearch) -> tuple[int, int]:
    """Return the numbers of attentions and activations that a planner may remove.

    Raises:
        ValueError: If there is no unit of a type.
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
    """Splits within a budget.

    Attributes:
        splits: Pairs of removed (attentions, activations).
        more: Function from the plan of the picked split to larger splits to choose from, if the plan removes too
            little; empty if the plan is enough.
    """

    splits: tuple[Split, ...]
    more: Callable[[Plan], tuple[Split, ...]] = lambda plan: ()


def feasible_within(
    planner: DepthSearch, budget: Budget | None = None, *, n_remove: int | None = None, n_keep: int | None = None
) -> Feasible:
    """Return the feasible splits of a budget: exactly one of `budget`, `n_remove` and `n_keep`.

    Args:
        planner: Planner with attentions and activations to choose from, the units of the splits.
        budget: Share of the MACs, the parameters or the latency, measured per type on half of the units.
        n_remove: Number of units to remove, both types together.
        n_keep: Number of units to keep, both types together.

    Raises:
        ValueError: If not exactly one budget is given, or the budget cannot be met.
    """
    layers = layers_of(planner)
    if budget is None:
        return Feasible(feasible_splits(layers, n_remove=n_remove, n_keep=n_keep))
    if budget.in_units or n_remove is not None or n_keep is not None:
        raise ValueError(
            "Expected exactly one of n_remove, n_keep and a share of macs, params or latency, but got "
            f"n_remove={n_remove}, n_keep={n_keep}, {budget.to_dict()}. Units per type are what is searched for."
        )
    cost, share = next(iter(planner.session.in_shares(budget).shares.items()))
    attention, activation = (planner.share_of_one(kind, cost) for kind in TYPES)
    slack = CLOCK if cost == "latency" else 0.0
    line = CostLine(layers, attention, activation, share, lambda plan: planner.removed_share(plan, cost), slack)
    return Feasible(line.splits, line.more)


@dataclass(frozen=True)
class CostLine:
    """Splits that meet a share of cost if savings of units add up, and larger splits if a plan saves less.

    Replacements have a cost, and a clock does not add up exactly.

    Args:
        layers: Numbers of units, see `affordable_splits`.
        attention_share: Share per attention, see `affordable_splits`.
        activation_share: Share per activation, see `affordable_splits`.
        share: Share of the cost to remove.
        removed: Function to measure the removed share of a plan.
        slack: Tolerated shortfall.
    """

    layers: tuple[int, int]
    attention_share: float
    activation_share: float
    share: float
    removed: Callable[[Plan], float]
    slack: float = 0.0

    @property
    def splits(self) -> tuple[Split, ...]:
        """Splits that meet the share by addition."""
        return affordable_splits(self.layers, self.attention_share, self.activation_share, self.share)

    def more(self, plan: Plan) -> tuple[Split, ...]:
        """Return the splits that save more than a plan by its shortfall; empty if the plan meets the share.

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
                "of the cost gone: replacements cost, too. Lower the budget, or use the cheapest replacement: "
                'replace="identity".'
            )
        one = (self.attention_share, self.activation_share)
        added, most = (sum(n * saved for n, saved in zip(ns, one, strict=True)) for ns in (units, self.layers))
        return affordable_splits(self.layers, *one, budget=min(added + short, most))
