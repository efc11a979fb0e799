"""Frozen records of a report."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from prunerecover.checkpoint.ledger_record import QualityTrail
from prunerecover.cost.latency import LatencyRatio
from prunerecover.cost.measurement import Measurement
from prunerecover.cost.statistics import Interval
from prunerecover.plan.evidence import FrontierEvidence, PlanningCost
from prunerecover.plan.kept_groups import KeptGroup
from prunerecover.plan.kinds import WIDTH_KINDS
from prunerecover.plan.plan import Plan
from prunerecover.plan.removed_units import removed_units
from prunerecover.plan.summary import saved_shares

SCHEMA = "prunerecover.report/1"


class Record(BaseModel):
    """Base: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MetricComparison(Record):
    """A metric of both models on the same samples.

    Attributes:
        samples: Number of samples.
        share: Whether all scores are 0 or 1, so that the mean is a share of the samples, as for accuracy.
        dense: Mean score of the dense model (Wilson's interval for scores of 0 or 1).
        pruned: Mean score of the pruned model.
        difference: Mean of pruned - dense per sample, with the paired bootstrap interval.
    """

    samples: int
    share: bool
    dense: Interval
    pruned: Interval
    difference: Interval


class LoggedMetric(Record):
    """A validation metric that a module logged, at three moments of a fit, each as epoch and value.

    Attributes:
        dense: Last value before the first surgery; epoch None: from a validation before the fit. None: no value.
        after_surgery: First value after the last surgery, in an epoch with some training already; None: the surgery was
            in an earlier, unknown fit.
        last: Last value of the fit.
        share: Whether the metric is a share, such as an accuracy from 0 to 1, and not a loss or a percentage.
    """

    dense: tuple[int | None, float] | None
    after_surgery: tuple[int, float] | None
    last: tuple[int, float]
    share: bool


class PlanSummary(Record):
    """Removals of a plan, with provenance.

    Attributes:
        removed: Names of the units in the dense model, per kind, in the order of the edits.
        leaves: Replacement of each unit of depth.
        groups: Kept channels, heads, neurons or experts of every group.
        saved: Removed share of each cost in the budget, by name; empty: unknown.
        frontier: Costs of plans for other shares; None: not computed.
    """

    method: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)
    seed: int = 0
    removed: dict[str, list[str]] = Field(default_factory=dict)
    leaves: dict[str, str] = Field(default_factory=dict)
    groups: tuple[KeptGroup, ...] = ()
    saved: dict[str, float] = Field(default_factory=dict)
    frontier: FrontierEvidence | None = None

    @model_serializer(mode="wrap")
    def _without_what_is_not_known(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        return {name: value for name, value in found.items() if value or name not in ("saved", "frontier")}

    @classmethod
    def of(cls, plan: Plan) -> PlanSummary:
        """Summarise a plan."""
        removed: dict[str, list[str]] = {}
        leaves: dict[str, str] = {}
        for unit in removed_units(plan.edits):
            removed.setdefault(unit.kind, []).append(unit.name)
            if unit.kind not in WIDTH_KINDS:
                leaves[unit.name] = unit.leaves
        return cls(
            method=plan.made_by.method,
            arguments=plan.made_by.arguments,
            seed=plan.made_by.seed,
            removed=removed,
            leaves=leaves,
            groups=plan.kept_groups,
            saved=saved_shares(plan),
            frontier=found if (found := FrontierEvidence.of(plan.evidence)).frontier else None,
        )


class ReportData(Record):
    """Data of a report: before and after.

    Attributes:
        dense: Cost of the dense model.
        pruned: Cost of the pruned model.
        block_macs: MACs of the blocks alone, dense and pruned, per batch; None for models of unknown structure.
        latency: Interleaved comparison of latency; None if skipped.
        metrics: Metrics of both models on the same samples, by name.
        logged: Validation metrics from a fit, by name.
        quality: Steps of a fit that pruned until a metric of validation fell; None: the fit did not.
        plan: Removals of the plan.
        planning_cost: Cost of finding the plan; "search" in files.
        seed: Seed of the bootstraps.
        details: Additional JSON values to keep with the numbers (a history, a recipe, a note).
    """

    schema_name: Literal["prunerecover.report/1"] = Field(default="prunerecover.report/1", alias="schema")
    dense: Measurement
    pruned: Measurement
    block_macs: tuple[int, int] | None = None
    latency: LatencyRatio | None = None
    metrics: dict[str, MetricComparison] = Field(default_factory=dict)
    logged: dict[str, LoggedMetric] = Field(default_factory=dict)
    quality: QualityTrail | None = None
    plan: PlanSummary | None = None
    planning_cost: PlanningCost | None = Field(
        default=None, validation_alias=AliasChoices("planning_cost", "search"), serialization_alias="search"
    )
    seed: int = 0
    details: dict[str, Any] = Field(default_factory=dict)

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the software."""
        return self.dense.versions

    @property
    def time_over_macs(self) -> float | None:
        """Remaining share of the time, divided by the remaining share of the MACs: 1 is ideal, above 1 is worse."""
        if self.latency is None:
            return None
        return self.latency.ratio.value / (self.pruned.macs / self.dense.macs)
