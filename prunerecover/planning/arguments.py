"""Arguments of planning depth and width for one budget, with checks before any computation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from prunerecover.cost.units.cost_names import ALONE
from prunerecover.depth.arguments import DepthConfig
from prunerecover.importance.measuring.losses import Loss
from prunerecover.importance.measuring.names import name_of
from prunerecover.plan.budget import Budget
from prunerecover.plan.kinds import DEPTH_KINDS, KINDS, RANKED_KINDS, WIDTH_KINDS, kinds_among
from prunerecover.planning.score import Score, check_score
from prunerecover.store.search_store import store_folder
from prunerecover.width.arguments import WidthConfig
from prunerecover.width.groups.discovery import FOUND_KINDS
from prunerecover.width.groups.experts import find_experts
from prunerecover.width.groups.rounding import RoundTo


@dataclass(frozen=True, kw_only=True)
class PruningConfig:
    """All arguments of `plan_pruning` but the model, the budget and the batches; checked on construction.

    Raises:
        ValueError: If a kind is unknown, or an argument does not go with another.
        TypeError: If an argument is of another type.
    """

    loss: Loss | None = None
    kinds: Sequence[str] | None = None
    equal_layers: bool = False
    round_to: RoundTo | None = None
    ignore: Sequence[str] = ()
    score: Score | None = None
    seed: int = 0
    store: str | Path | None = None

    def __post_init__(self) -> None:
        """Check the arguments, and take a single kind or pattern for a list of one."""
        if self.kinds is not None:
            object.__setattr__(self, "kinds", kinds_among(self.kinds, KINDS))
        object.__setattr__(self, "store", store_folder(self.store))
        check_score(self.score, kept=self.store is not None)
        object.__setattr__(self, "ignore", self.width(FOUND_KINDS, self.ignore).ignore)

    def said(self) -> dict[str, Any]:
        """Return the record of the arguments in a plan, as JSON primitives: only those that were set."""
        kinds = None if self.kinds is None else list(self.kinds)
        round_to = dict(self.round_to) if isinstance(self.round_to, Mapping) else self.round_to
        given = {
            "kinds": kinds,
            "equal_layers": self.equal_layers,
            "round_to": round_to,
            "ignore": list(self.ignore),
            "score": None if self.score is None else name_of(self.score),
        }
        return {name: value for name, value in given.items() if value}

    def depth_kinds(self) -> tuple[str, ...] | None:
        """Return the requested kinds of depth; None: the default ones."""
        return None if self.kinds is None else tuple(kind for kind in self.kinds if kind in DEPTH_KINDS)

    def width_kinds(self, model: nn.Module, costs: Sequence[str]) -> tuple[str, ...]:
        """Return the kinds of width that may go: as requested, or the default ones, and experts where useful.

        Args:
            model: Unwrapped.
            costs: Costs of the budget; experts save parameters, memory and checkpoint size.
        """
        if self.kinds is not None:
            return tuple(kind for kind in self.kinds if kind in WIDTH_KINDS and kind in RANKED_KINDS)
        return (
            (*FOUND_KINDS, "expert")
            if {"params", "memory", "checkpoint"} & {*costs} and find_experts(model)
            else FOUND_KINDS
        )

    @property
    def smaller_heads(self) -> bool:
        """Whether heads may get smaller, apart from removed heads."""
        return self.kinds is None or "head_dim" in self.kinds

    def depth(self, kinds: Sequence[str] | None, ignore: Sequence[str]) -> DepthConfig:
        """Return the arguments of planning in depth.

        Args:
            kinds: Kinds of units; None: the default ones.
            ignore: Patterns of units to keep.
        """
        return DepthConfig(kinds=kinds, ignore=ignore, seed=self.seed, store=self.store)

    def width(self, kinds: Sequence[str], ignore: Sequence[str]) -> WidthConfig:
        """Return the arguments of planning in width; see `depth`."""
        return WidthConfig(
            loss=self.loss,
            kinds=kinds,
            equal_layers=self.equal_layers,
            round_to=self.round_to,
            ignore=ignore,
            seed=self.seed,
        )


def check_costs(budget: object) -> Budget:
    """Return the budget, in shares or amounts of costs.

    Raises:
        TypeError: If the argument is no Budget.
        ValueError: If the budget counts units.
    """
    if not isinstance(budget, Budget):
        raise TypeError(
            f"Expected argument budget to be a Budget, but got {type(budget).__name__}. Use Budget(macs=0.3)."
        )
    if budget.in_units:
        raise ValueError(
            f"Expected a share of a cost, such as the MACs, for depth and width together, but got "
            f"{budget.to_dict()}: units of different kinds have no number in common. Remove units of depth with "
            "plan_depth or DepthPrune, and experts with plan_width or WidthPrune."
        )
    return budget


def budget_of(shares: Mapping[str, float]) -> Budget:
    """Return the budget of shares of costs.

    >>> budget_of({"macs": 0.25}).macs
    0.25
    """
    given: dict[str, Any] = dict(shares)
    return Budget(**given)


def budget_alone(cost: str, share: float) -> Budget:
    """Return the budget for planning in depth or in width alone.

    Args:
        cost: Name of the cost.
        share: Share of the cost to remove.

    Raises:
        ValueError: If only the library plans for this cost.
    """
    if cost not in ALONE:
        raise ValueError(
            f"Expected a cost among {', '.join(ALONE)} for a network whose outputs cannot be compared, but got {cost}. "
            "Pass a divergence= that compares the outputs, or plan for one of these costs."
        )
    return budget_of({cost: share})
