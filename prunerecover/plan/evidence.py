"""The evidence of a plan: what it was decided by, written by the planners and read by figures, pages and reports.

In the plan and in its file evidence is one mapping, `Plan.evidence`, to which planning in depth and in width, the
boundary search and the command line each add entries, and a user may add others. Every record here stands for some of
these entries: `to_dict` gives those that were set, and `of` reads them from a plan's evidence. Entries that are not
there, or have another form than here, have their defaults: the evidence of a plan that somebody else wrote is no error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from prunerecover.plan.kinds import Kind, WidthKind
from prunerecover.plan.records import Items, Result

Cost = Literal["macs", "params", "latency"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Evidence(_Record):
    """Base: entries of a plan's evidence."""

    def to_dict(self) -> dict[str, Any]:
        """Return the entries that were set, as JSON primitives."""
        return self.model_dump(mode="json", exclude_unset=True)

    @classmethod
    def of(cls, evidence: Mapping[str, Any]) -> Self:
        """Read the entries in a plan's evidence.

        >>> DepthEvidence.of({"importance": {"blocks.0": 0.5}, "samples": "many", "note": "by hand"})
        DepthEvidence(units={}, importance={'blocks.0': 0.5}, samples=None, divergence={}, removed_share=None, order=())
        """
        entries = {name: evidence[name] for name in cls.model_fields if name in evidence}
        try:
            return cls.model_validate(entries)
        except ValidationError as error:
            wrong = {problem["loc"][0] for problem in error.errors()}
            return cls.model_validate({name: value for name, value in entries.items() if name not in wrong})


class RemovedShare(_Record):
    """The share of a model's cost that goes with a plan in depth.

    Attributes:
        cost: "macs" or "params".
        live: Once the plan is applied: linears with no activation between them still compute as two.
        merged: Once the model is merged, too, as `pruned/` and `merge` leave it. Budgets are in these terms.
        asked: By the budget.
        smallest_unit: What goes with the smallest unit alone; a warning says where more than that goes beyond what is
            asked.
    """

    cost: Literal["macs", "params"]
    live: float
    merged: float
    asked: float
    smallest_unit: float


class RemovalStep(_Record):
    """A unit that went, and the model without it and those before it.

    Attributes:
        unit: Its name in the dense model.
        config: Entries of a transformers config that say so; empty if nothing is to be said.
        result: The model that is left.
    """

    unit: str
    config: dict[str, Any] = {}
    result: Result


class DepthEvidence(_Evidence):
    """What planning in depth says.

    Attributes:
        units: Kinds of the units that could go, by name, in order of depth.
        importance: Of every unit that was ranked, by name.
        samples: How many the plan was calibrated on.
        divergence: Of the output, once the unit of this name and those before it had gone.
        removed_share: Of the MACs or parameters, where the budget is a share of them.
        order: In which the units went, where each could go without the later ones; else empty. See `Plan.first`.
    """

    units: dict[str, Kind] = {}
    importance: dict[str, float] = {}
    samples: int | None = None
    divergence: dict[str, float] = {}
    removed_share: RemovedShare | None = None
    order: Items[RemovalStep] = ()


def joined(first: Mapping[str, Any], second: Mapping[str, Any], dense_name: Callable[[str], str]) -> dict[str, Any]:
    """Return the evidence of two plans, one after the other: of units of depth what the later one says, if it does.

    >>> one, two = ({"importance": own} for own in ({"a.0": 1.0, "a.1": 2.0}, {"a.0": 3.0}))
    >>> joined(one, two, lambda name: name.replace("0", "1"))
    {'importance': {'a.0': 1.0, 'a.1': 3.0}}

    Args:
        first: Of the plan that comes first.
        second: Of the other, whose names are those of what the first one leaves.
        dense_name: Translates them to names of the dense model.
    """
    before, after = DepthEvidence.of(first), DepthEvidence.of(second)
    found = {**first, **second}
    alone = ("saved", *FrontierEvidence.model_fields)  # of one of them
    for entry in (*alone, "removed_share", "divergence") if after.units else alone:
        found.pop(entry, None)
    for entry in ("units", "importance"):
        own = getattr(before, entry) | {dense_name(name): value for name, value in getattr(after, entry).items()}
        found |= {entry: own} if own else {}
    return found


class WidthEvidence(_Evidence):
    """What planning in width says of every group, and of how kinds of units count for beside each other.

    Attributes:
        kept: Units that stay, and units that there were, by the name of the group.
        kinds: Of their units.
        rates: How many times as much the importance of a kind counts; empty: it was not tried.
        damping: That was tried best with them.
        saved: The share of the cost that goes with the plan, as it was counted; None: it was not.
    """

    kept: dict[str, tuple[int, int]] = {}
    kinds: dict[str, WidthKind] = {}
    rates: dict[str, float] = {}
    damping: float = 0.0
    saved: float | None = None


class UniformComparison(_Record):
    """Protection scores of a plan beside uniform pruning: of what only the plan takes, and of what it alone spares."""

    taken: float
    spared: float


class ToleranceEvidence(_Evidence):
    """What planning in width by Tolerance of Difference says besides.

    Attributes:
        tolerance: That the groups were pruned at; None: the plan is not by tolerance.
        share: Of the way there that the groups go.
        protected_mass: Protection score that goes, and the most that could, by the name of the group.
        exchange: Against uniform pruning; None: it cannot be compared.
        compared_by: The cost that is the same then.
        kept_by_tolerance: The share of all units that another tolerance would keep.
    """

    tolerance: float | None = None
    share: float = 1.0
    protected_mass: dict[str, tuple[float, float]] = {}
    exchange: UniformComparison | None = None
    compared_by: Literal["macs", "params"] = "macs"
    kept_by_tolerance: dict[str, float] = {}


class TrialResult(_Record):
    """One short recovery of the boundary search: attentions and activations removed, and the accuracy in percent."""

    attention: int
    activation: int
    accuracy: float


class Regret(_Record):
    """How many points better the truly best split may be: the expectation, and the interval around it."""

    value: float
    low: float
    high: float
    confidence: float


class PredictedSplit(_Record):
    """The split that the boundary search has picked: attentions and activations to remove, and what to expect."""

    attention: int
    activation: int
    accuracy: float
    regret: Regret


class BoundaryEvidence(_Evidence):
    """What the boundary search says: its runs in order, and its pick, which a plan may have to go beyond."""

    trials: Items[TrialResult] = ()
    predicted: PredictedSplit | None = None


Saved = float | dict[str, float]  # share of the cost of a budget, or of each cost by its name where there are several


class TriedSplit(_Record):
    """A split of one budget between depth and width, and how the network without both was.

    Attributes:
        depth: Share of the budget that depth was asked to take.
        divergence: Of the output on held-out samples; None: it cannot be compared, or nothing had to be.
        accuracy: After a short recovery, in percent; None: splits were not recovered.
        saved: The share of the cost that went, once merged, or of each of several costs; of latency as it was measured.
            None: there is no plan.
        refused: Why there is no such plan; empty if there is one.
    """

    depth: float
    divergence: float | None = None
    accuracy: float | None = None
    saved: Saved | None = None
    refused: str = ""


class SplitEvidence(_Evidence):
    """What planning depth and width for one budget says.

    Attributes:
        splits: That were tried, in order.
        depth_share: Of the one that is planned.
        saved: The share of the cost that goes with the plan, once merged, or of each of several costs; of latency as it
            was measured.
    """

    splits: Items[TriedSplit] = ()
    depth_share: float | None = None
    saved: Saved | None = None


@dataclass(frozen=True)
class FrontierPoint:
    """What a plan for a share of a cost would save, and by how much it would change the output.

    Attributes:
        share: Share that is asked for.
        divergence: Divergence of the output, as it is predicted.
        costs: Share of every cost that would go, by name: "macs", "params", "latency".
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
    """What plans for other shares would have cost.

    Attributes:
        frontier: Plans, in rising order of their shares.
        frontier_cost: Cost that the shares are of, or several, of each of which as much goes.
    """

    frontier: Items[FrontierPoint] = ()
    frontier_cost: Cost | Items[Cost] = "macs"


class PlanningCost(_Record):
    """What it took to find a plan.

    Attributes:
        asked: The budget, by the names of the command line's arguments.
        seconds: In all.
        trial_seconds: Of all trials, those of an interrupted search before included.
        peak_memory_bytes: Of the process on a CPU, of the allocator on an accelerator.
        trials: How many there were.
    """

    asked: dict[str, Any] = {}
    seconds: float = 0.0
    trial_seconds: float = 0.0
    peak_memory_bytes: int | None = None
    trials: int | None = None


class SearchEvidence(_Evidence):
    """What the command line says of finding the plan."""

    search: PlanningCost | None = None
