"""Evidence of a plan: the grounds of the decisions, written by the planning and read by figures, pages and reports.

In a plan and on disk evidence is a mapping, `Plan.evidence`. Planning in depth and in width, the boundary search and
the command line each add entries, and a user may add more. Every record here covers some of these entries: `to_dict`
gives the set entries, and `of` reads the entries from the evidence of a plan. Missing and malformed entries have
defaults: foreign evidence is no error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import ValidationError, field_validator

from prunerecover.cost.units.cost_names import CostName
from prunerecover.plan.kinds import Kind, WidthKind
from prunerecover.plan.records import Items, OpenRecord, Result


class _Evidence(OpenRecord):
    """Base: entries of the evidence of a plan."""

    def to_dict(self) -> dict[str, Any]:
        """Return the set entries, as JSON primitives."""
        return self.model_dump(mode="json", exclude_unset=True)

    @classmethod
    def of(cls, evidence: Mapping[str, Any]) -> Self:
        """Read the entries from the evidence of a plan.

        >>> DepthEvidence.of({"importance": {"blocks.0": 0.5}, "samples": "many", "note": "by hand"})
        DepthEvidence(units={}, importance={'blocks.0': 0.5}, samples=None, divergence={}, order=())
        """
        entries = {name: evidence[name] for name in cls.model_fields if name in evidence}
        try:
            return cls.model_validate(entries)
        except ValidationError as error:
            wrong = {problem["loc"][0] for problem in error.errors()}
            return cls.model_validate({name: value for name, value in entries.items() if name not in wrong})


class RemovedShare(OpenRecord):
    """Removed share of a cost of a model.

    Attributes:
        asked: Share in the budget.
        merged: Share after the model is merged, as in `pruned/` and after `merge`; of a latency, as measured. Budgets
            count this share.
        live: Share of MACs or parameters after the plan is applied alone: linears without an activation in between
            still compute as two. None: another cost.
        smallest_unit: Share of the smallest unit alone; a larger excess over the budget gives a warning. None: unknown.
    """

    asked: float
    merged: float
    live: float | None = None
    smallest_unit: float | None = None


class BudgetEvidence(_Evidence):
    """Evidence of every plan of a budget in costs, whatever its kind: the removed share of each cost, by name."""

    removed_share: dict[CostName, RemovedShare] = {}

    @field_validator("removed_share", mode="before")
    @classmethod
    def _of_one_cost(cls, given: Any) -> Any:
        """Read the form for a single cost, as of earlier plans."""
        return {given["cost"]: given} if isinstance(given, Mapping) and "cost" in given else given


class RemovalStep(OpenRecord):
    """A removed unit, and the model without this and earlier units.

    Attributes:
        unit: Name in the dense model.
        config: Entries of a transformers config for the result; may be empty.
        result: Remaining model.
    """

    unit: str
    config: dict[str, Any] = {}
    result: Result


class DepthEvidence(_Evidence):
    """Evidence of planning in depth.

    Attributes:
        units: Kinds of the removable units, by name, in order of depth.
        importance: Importance of every ranked unit, by name.
        samples: Number of calibration samples.
        divergence: Divergence of the output after the removal of this and earlier units, by name.
        order: Order of removal, if each unit can be removed without the later units; else empty. See `Plan.first`.
    """

    units: dict[str, Kind] = {}
    importance: dict[str, float] = {}
    samples: int | None = None
    divergence: dict[str, float] = {}
    order: Items[RemovalStep] = ()


def joined(first: Mapping[str, Any], second: Mapping[str, Any], dense_name: Callable[[str], str]) -> dict[str, Any]:
    """Return the evidence of two plans in sequence, with units and importance of both in names of the dense model.

    The second plan wins where entries meet. Entries about a single plan are dropped: the removed share, the frontier,
    and, if the second plan lists units of depth, the divergences.

    >>> one, two = ({"importance": own} for own in ({"a.0": 1.0, "a.1": 2.0}, {"a.0": 3.0}))
    >>> joined(one, two, lambda name: name.replace("0", "1"))
    {'importance': {'a.0': 1.0, 'a.1': 3.0}}

    Args:
        first: Evidence of the first plan.
        second: Evidence of the second plan, with names in the model after the first plan.
        dense_name: Translation of names in the second plan to names of the dense model.
    """
    before, after = DepthEvidence.of(first), DepthEvidence.of(second)
    found = {**first, **second}
    alone = (*BudgetEvidence.model_fields, *FrontierEvidence.model_fields)  # entries about a single plan
    for entry in (*alone, "divergence") if after.units else alone:
        found.pop(entry, None)
    for entry in ("units", "importance"):
        own = getattr(before, entry) | {dense_name(name): value for name, value in getattr(after, entry).items()}
        found |= {entry: own} if own else {}
    return found


class WidthEvidence(_Evidence):
    """Evidence of planning in width: every group, and the weights of kinds of units against each other.

    Attributes:
        kept: Numbers of kept units and of all units, by the name of the group.
        kinds: Kinds of the units, by the name of the group.
        rates: Factor on the importance of each kind; empty: not tried.
        damping: Best damping tried with the rates.
    """

    kept: dict[str, tuple[int, int]] = {}
    kinds: dict[str, WidthKind] = {}
    rates: dict[str, float] = {}
    damping: float = 0.0


class UniformComparison(OpenRecord):
    """Protection scores of units that only the plan removes (`taken`), or only uniform pruning (`spared`), as sums."""

    taken: float
    spared: float


class ToleranceEvidence(_Evidence):
    """Evidence of planning in width by Tolerance of Difference.

    Attributes:
        tolerance: Tolerance of the groups; None: the plan is not by tolerance.
        share: Progress of the groups towards the tolerance, as a share.
        protected_mass: Removed protection score and the maximum, by the name of the group.
        exchange: Comparison with uniform pruning; None: not comparable.
        compared_by: Cost held equal in the comparison.
        kept_by_tolerance: Kept share of all units at other tolerances.
    """

    tolerance: float | None = None
    share: float = 1.0
    protected_mass: dict[str, tuple[float, float]] = {}
    exchange: UniformComparison | None = None
    compared_by: Literal["macs", "params"] = "macs"
    kept_by_tolerance: dict[str, float] = {}


class TrialResult(OpenRecord):
    """A short recovery in the boundary search: numbers of removed attentions and activations, accuracy in percent."""

    attention: int
    activation: int
    accuracy: float


class Regret(OpenRecord):
    """Expected gap in points to the truly best split, with an interval."""

    value: float
    low: float
    high: float
    confidence: float


class PredictedSplit(OpenRecord):
    """Choice of the boundary search: attentions and activations to remove, with expected accuracy and regret."""

    attention: int
    activation: int
    accuracy: float
    regret: Regret


class BoundaryEvidence(_Evidence):
    """Evidence of the boundary search: trials in order, and the chosen split (a plan may have to exceed the split)."""

    trials: Items[TrialResult] = ()
    predicted: PredictedSplit | None = None


class TriedSplit(OpenRecord):
    """A split of a budget between depth and width, and the quality of the pruned network.

    Attributes:
        depth: Share of the budget for depth.
        divergence: Divergence of the output on held-out samples; None: not comparable, or not needed.
        accuracy: Accuracy after a short recovery, in percent; None: no recovery.
        score: Score of the pruned network by the user's function, larger is better; None: no function.
        saved: Removed share of each cost, once merged; empty: no plan. In earlier plans a number.
        refused: Reason why there is no plan; empty if there is a plan.
    """

    depth: float
    divergence: float | None = None
    accuracy: float | None = None
    score: float | None = None
    saved: dict[str, float] | float = {}
    refused: str = ""


class SplitEvidence(_Evidence):
    """Evidence of planning depth and width for a single budget.

    Attributes:
        splits: Tried splits, in order.
        depth_share: Share for depth in the chosen split.
        picked: Number of the chosen split in `splits`, from 0, where plans were scored; None: no scores.
    """

    splits: Items[TriedSplit] = ()
    depth_share: float | None = None
    picked: int | None = None


@dataclass(frozen=True)
class FrontierPoint:
    """Predicted savings and divergence of a plan for a share of a cost.

    Attributes:
        share: Requested share.
        divergence: Predicted divergence of the output.
        costs: Removed share of every cost, by name: "macs", "params", "latency".
    """

    share: float
    divergence: float
    costs: Mapping[str, float]

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 <= self.share < 1 or not all(map(math.isfinite, (self.divergence, *self.costs.values()))):
            raise ValueError(
                f"Expected a share from 0 to 1 (exclusive) with finite numbers, but got {self}. Leave out shares that "
                "no plan meets."
            )


class FrontierEvidence(_Evidence):
    """Evidence of plans for further shares.

    Attributes:
        frontier: Plans, in rising order of their shares.
        frontier_cost: Cost of the shares, or several costs with equal shares.
    """

    frontier: Items[FrontierPoint] = ()
    frontier_cost: CostName | Items[CostName] = "macs"


class PlanningCost(OpenRecord):
    """Resources of the planning.

    Attributes:
        asked: Budget, by the names of the command line's arguments.
        seconds: Seconds in total.
        trial_seconds: Seconds of all trials, including an interrupted search before.
        peak_memory_bytes: Peak memory of the process on a CPU, of the allocator on an accelerator.
        trials: Number of trials.
    """

    asked: dict[str, Any] = {}
    seconds: float = 0.0
    trial_seconds: float = 0.0
    peak_memory_bytes: int | None = None
    trials: int | None = None


class SearchEvidence(_Evidence):
    """Evidence from the command line: resources of the planning."""

    search: PlanningCost | None = None
