"""Arguments of planning in width: spelled once, and checked before anything is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict, get_args

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
    """Types of the arguments of `WidthConfig`, for what takes `**arguments: Unpack[WidthArguments]`."""

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
    """How units are chosen, and what they leave: arguments of `plan_width`, checked when they are put together.

    Raises:
        ValueError: If an argument is unknown or does not go with another.
        TypeError: If an allocation or an importance is neither a name nor a callable, or a number is something else.
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
        name = self.allocated_by.name
        if not isinstance(self.importance, str) and isinstance(self.importance, Sequence):
            object.__setattr__(self, "importance", tuple(self.importance))
        registered = [importance_of(importance, "width") for importance in self.importances]
        if len(registered) != 1 + self.by_tolerance:
            raise ValueError(
                f"Expected {'two importances' if self.by_tolerance else 'one importance'} for allocation='{name}', but "
                f"got {', '.join(entry.name for entry in registered) or 'none'}. Two are for allocation='tolerance': "
                "one whose low values propose what goes, and one whose high values stay, as ('u_score', 'r_score')."
            )
        if not self.by_tolerance and self.tolerance is not None:
            raise ValueError(
                f"Expected a tolerance with allocation='tolerance' only, but got allocation='{name}'. Leave it out."
            )
        if self.tolerance is not None:
            if isinstance(self.tolerance, bool) or not isinstance(self.tolerance, int | float):
                raise TypeError(f"Expected tolerance as a number, but got {self.tolerance!r}. For example 0.3.")
            check_tolerance(self.tolerance)
        check_round_to(self.round_to)

    @property
    def allocated_by(self) -> RegisteredAllocation:
        """The allocation; where None is given, the rule that serves every network."""
        return allocation_of("per_cost" if self.allocation is None else self.allocation)

    @property
    def evenly(self) -> bool:
        """Whether layers that are alike give their units together."""
        return self.equal_layers or self.allocated_by.rule is uniform

    @property
    def gates(self) -> bool:
        """Whether units are scored by gates, which need a place to be put at."""
        return "gate_taylor" in self.importances

    @property
    def by_tolerance(self) -> bool:
        """Whether it is Tolerance of Difference, which weighs two importances, and can do without a budget."""
        return self.allocated_by.rule is None

    @property
    def importances(self) -> tuple[str | Importance, ...]:
        """The importances that are read, with those that None stands for; the one whose high values stay is last."""
        if self.importance is None:
            return ("u_score", "r_score") if self.by_tolerance else ("gate_taylor",)
        return self.importance if isinstance(self.importance, tuple) else (self.importance,)

    @property
    def ways(self) -> tuple[WidthRule, ...]:
        """What is tried for a latency: as it is, and in blocks, unless that is settled or the caller's own rule."""
        if self.round_to is not None or self.allocated_by.rule not in (None, per_cost, uniform, global_ranking):
            return (self,)
        return self, dataclasses.replace(self, round_to=BLOCK)

    def check_budget(self, budget: Budget | None, kinds: Sequence[str]) -> None:
        """Raise unless there is a budget or a tolerance, and it goes with the kinds of units.

        Args:
            budget: None: the tolerance says how much goes.
            kinds: Of the units that may go.

        Raises:
            ValueError: If none or both are given, or the budget does not go with the kinds.
            TypeError: If it is no `Budget`.
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
    """All arguments of planning in width but the model, the budget and the batches, as `plan_width` describes them.

    Args:
        allocation: Rule that chooses the sizes of groups: "per_cost", "tolerance", "uniform", "global", or a callable;
            None: the integer program over the library of variants where it serves, else "per_cost".
        importance: What says how much a unit matters, by name or as a callable; two for the allocation by tolerance:
            the one whose low values propose what goes, and the one whose high values stay. None: "gate_taylor", or
            ("u_score", "r_score").
        tolerance: One number in [0, 1] for all groups, with `allocation="tolerance"`, instead of a budget: the share of
            what goes that the second importance may object to.
        loss: `loss(network, batch) -> scalar`. In a fit `batch` is the inputs of a call, `network(*batch.args,
            **batch.kwargs)`, and `batch.batch` what the training step was given; None: what the training step returns.
        labels: `labels(batch) -> (N,)` integer classes for "u_score"; None: those that the batches hold.
        kinds: Among "channel", "head", "neuron", "expert" and "hidden"; a budget in units names its own.
        replace: "calibrated" (weights that read a group take over what its removed units did) or "zero".
        equal_layers: Layers of one kind and size keep one number of units, which a config of transformers can say.
        round_to: What a group keeps is a multiple of this number: 8 for channels and neurons, or one per kind, such as
            {"channel": 8, "neuron": 64}. None: any; for a latency 8 is tried, too.
        ignore: Shell patterns of groups that stay, such as "layer4.*".
        scores: Scores of this network as it is, saved earlier: nothing is scored again.
        seed: Seed of the samples and of everything random in planning.

    Raises:
        ValueError: If an argument is unknown or does not go with another.
        TypeError: If an allocation or an importance is neither a name nor a callable.
    """

    loss: Loss | None = None
    labels: ClassLabels | None = None
    kinds: Sequence[str] = FOUND_KINDS
    ignore: Sequence[str] = ()
    scores: str | Path | SavedScores | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the arguments, and take a single kind or pattern for a list of one."""
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
        """Return the arguments with the kinds that a budget in units names; see `check_budget` for what is raised."""
        self.check_budget(budget, self.kinds)
        return self if budget is None else dataclasses.replace(self, kinds=budget.kinds(self.kinds))
