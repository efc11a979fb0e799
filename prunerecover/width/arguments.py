"""Arguments of planning in width, checked before any computation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict, get_args

from prunerecover.former import warn_of
from prunerecover.importance.context import ClassLabels, Importance
from prunerecover.importance.measuring.losses import Loss
from prunerecover.importance.registry import importance_of
from prunerecover.importance.saved_scores import SavedScores, scores_from
from prunerecover.model.arguments import check_flag, check_seed, patterns_of
from prunerecover.plan.budget import Budget
from prunerecover.plan.kinds import RANKED_WIDTH_KINDS, kinds_among
from prunerecover.width.allocation.by_importance import global_ranking, per_cost, uniform
from prunerecover.width.allocation.greedy_fill import kind_of
from prunerecover.width.allocation.registry import AllocationRule, RegisteredAllocation, allocation_of
from prunerecover.width.allocation.tolerance import check_tolerance
from prunerecover.width.groups.discovery import FOUND_KINDS
from prunerecover.width.groups.rounding import BLOCK, RoundTo, check_round_to

WidthReplace = Literal["calibrated", "zero"]


class WidthArguments(TypedDict, total=False):
    """Types of the arguments of `WidthConfig`, for functions with `**arguments: Unpack[WidthArguments]`."""

    allocation: AllocationRule | str | None
    importance: Importance | str | Sequence[Importance | str] | None
    tolerance: float | None
    loss: Loss | None
    labels: ClassLabels | None
    kinds: Sequence[str]
    replace: WidthReplace
    equal_layers: bool
    round_to: RoundTo | None
    ignore: Sequence[str]
    scores: str | Path | SavedScores | None
    seed: int


@dataclass(frozen=True, kw_only=True)
class WidthRule:
    """Choice of the removed units, and the treatment of readers: arguments of `plan_width`, checked on construction.

    Raises:
        ValueError: If an argument is unknown or does not fit another argument.
        TypeError: If an allocation or an importance is neither a name nor a callable, or the tolerance is no number.
    """

    allocation: str | AllocationRule | None = None
    importance: str | Importance | Sequence[str | Importance] | None = None
    tolerance: float | None = None
    replace: WidthReplace = "calibrated"
    equal_layers: bool = False
    round_to: RoundTo | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        if self.replace not in get_args(WidthReplace):
            raise ValueError(f"Expected replace among {', '.join(get_args(WidthReplace))}, but got '{self.replace}'.")
        if self.allocation == "tolerance":
            warn_of("allocation='tolerance'", level=4)
            object.__setattr__(self, "allocation", "fair_pruner")
        name = self.allocated_by.name
        if not isinstance(self.importance, str) and isinstance(self.importance, Sequence):
            object.__setattr__(self, "importance", tuple(self.importance))
        registered = [importance_of(importance, "width") for importance in self.importances]
        if len(registered) != 1 + self.by_tolerance:
            raise ValueError(
                f"Expected {'two importances' if self.by_tolerance else 'one importance'} for allocation='{name}', but "
                f"got {', '.join(entry.name for entry in registered) or 'none'}. Two are for allocation='fair_pruner': "
                "one whose low values propose what goes, and one whose high values stay, as ('u_score', 'r_score')."
            )
        if not self.by_tolerance and self.tolerance is not None:
            raise ValueError(
                f"Expected a tolerance with allocation='fair_pruner' only, but got allocation='{name}'. Leave it out."
            )
        if self.tolerance is not None:
            if isinstance(self.tolerance, bool) or not isinstance(self.tolerance, int | float):
                raise TypeError(f"Expected tolerance as a number, but got {self.tolerance!r}. For example 0.3.")
            check_tolerance(self.tolerance)
        check_round_to(self.round_to)

    @property
    def allocated_by(self) -> RegisteredAllocation:
        """Allocation; for None, the allocation for every network."""
        return allocation_of("per_cost" if self.allocation is None else self.allocation)

    @property
    def evenly(self) -> bool:
        """Whether alike layers lose their units together."""
        return self.equal_layers or self.allocated_by.rule is uniform

    @property
    def gates(self) -> bool:
        """Whether units are scored by gates, which need a place in the network."""
        return "gate_taylor" in self.importances

    @property
    def by_tolerance(self) -> bool:
        """Whether the allocation is Tolerance of Difference, with two importances and perhaps without a budget."""
        return self.allocated_by.rule is None

    @property
    def by_default(self) -> bool:
        """Whether the choice of units is left to the planner, and other units compensate for removed units."""
        return self.importance is None and not self.by_tolerance and self.replace == "calibrated"

    @property
    def importances(self) -> tuple[str | Importance, ...]:
        """Importances, with defaults for None; for two, the importance that protects high values comes last."""
        if self.importance is None:
            return ("u_score", "r_score") if self.by_tolerance else ("gate_taylor",)
        return self.importance if isinstance(self.importance, tuple) else (self.importance,)

    @property
    def ways(self) -> tuple[WidthRule, ...]:
        """Rules to try for a latency: without rounding and in blocks, unless rounding or the allocation is custom."""
        if self.round_to is not None or self.allocated_by.rule not in (None, per_cost, uniform, global_ranking):
            return (self,)
        return self, dataclasses.replace(self, round_to=BLOCK)

    def check_budget(self, budget: Budget | None, kinds: Sequence[str]) -> None:
        """Raise an error unless a budget or a tolerance is given, and fits the kinds of units.

        Args:
            budget: Budget; None: the tolerance decides the amount.
            kinds: Kinds of the units that may go.

        Raises:
            ValueError: If neither or both are given, or the budget does not fit the kinds.
            TypeError: If `budget` is no `Budget`.
        """
        if not isinstance(budget, Budget | None):
            raise TypeError(
                f"Expected argument budget to be a Budget, but got {type(budget).__name__}. Use Budget(macs=0.3)."
            )
        if (budget is None) == (self.tolerance is None):
            wanted = "a budget or a tolerance" if self.by_tolerance else "a budget, such as Budget(macs=0.3)"
            raise ValueError(
                f"Expected {wanted}, and not both, but got budget={budget} and tolerance={self.tolerance}."
            )
        if budget is not None:
            budget.check_one_cost()
        if budget is not None and budget.in_units:
            kind_of(budget)
        elif budget is not None and tuple(kinds) == ("expert",) and budget.params is None:
            raise ValueError(
                f"Expected a budget of params or units for experts, but got {budget.to_dict()}: a token visits as many "
                'experts however many there are. For example Budget(params=0.2) or Budget(remove={"expert": 8}).'
            )


@dataclass(frozen=True, kw_only=True)
class WidthConfig(WidthRule):
    """All arguments of planning in width but the model, the budget and the batches; see `plan_width`.

    Args:
        allocation: Rule for the sizes of groups: "per_cost", "fair_pruner", "uniform", "global", or a callable; None:
            the integer program over the library of variants where possible, else "per_cost".
        importance: Importance of units, by name or as a callable; two for the allocation by tolerance: the first
            proposes units of low values for removal, the second protects units of high values. None: "gate_taylor",
            with channels of networks with BatchNorm in the order of `channel_order`, or ("u_score", "r_score").
        tolerance: Number in [0, 1] for all groups, with `allocation="fair_pruner"`, instead of a budget: the largest
            share of removed units protected by the second importance.
        loss: Function `loss(network, batch) -> scalar`, as in the plan functions; in a fit, `batch` is the batch of the
            training step. None: the loss of the training step.
        labels: Function `labels(batch) -> (N,)` to integer classes, for "u_score"; None: the labels in the batches.
        kinds: Kinds among "channel", "head", "neuron", "expert" and "hidden"; a budget in units names its own.
        replace: Treatment of the weights that read a group: "calibrated" (refitted to compensate for removed units) or
            "zero".
        equal_layers: Whether layers of one kind and size keep an equal number of units, as far as a config of
            transformers can express sizes.
        round_to: Divisor of the number of kept units in a group: 8 for channels and neurons, or a divisor per kind,
            e.g. {"channel": 8, "neuron": 64}. None: no rounding; for a latency, 8 is tried, too.
        ignore: Shell patterns of groups that stay, e.g. "layer4.*".
        scores: Saved scores of the network in its present state, used instead of new scores.
        seed: Seed of the samples and of all random numbers in planning.

    Raises:
        ValueError: If an argument is unknown or does not fit another argument.
        TypeError: If an allocation or an importance is neither a name nor a callable.
    """

    loss: Loss | None = None
    labels: ClassLabels | None = None
    kinds: Sequence[str] = FOUND_KINDS
    ignore: Sequence[str] = ()
    scores: str | Path | SavedScores | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the arguments, and convert a single kind or pattern to a list."""
        super().__post_init__()
        object.__setattr__(self, "kinds", kinds_among(self.kinds, RANKED_WIDTH_KINDS, some=False))
        object.__setattr__(self, "ignore", patterns_of(self.ignore))
        object.__setattr__(self, "scores", scores_from(self.scores))
        check_seed(self.seed)
        check_flag("equal_layers", self.equal_layers)
        if self.loss is not None and not callable(self.loss):
            raise TypeError(
                f"Expected argument loss to be a callable f(model, batch), but got {type(self.loss).__name__}. "
                "Pass the function itself."
            )

    def for_budget(self, budget: Budget | None) -> WidthConfig:
        """Return the arguments with the kinds named by a budget in units; raises the errors of `check_budget`."""
        self.check_budget(budget, self.kinds)
        return self if budget is None else dataclasses.replace(self, kinds=budget.kinds(self.kinds))
