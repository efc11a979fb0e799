"""What `compare` found about a model before and after pruning, in a form that reads back.

A report states costs (parameters, MACs, latency as the median of interleaved pairs, memory), metrics with confidence
intervals, what was removed, what the search took, and where and with what all of this was measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prunerecover import report_text
from prunerecover.kept_groups import KeptGroup, kept_groups
from prunerecover.latency import LatencyRatio
from prunerecover.measure import Measurement
from prunerecover.removed_units import removed_units
from prunerecover.statistics import Interval
from prunerecover.width.groups import WidthKind

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from prunerecover.plan import Plan

SCHEMA = "prunerecover.report/1"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MetricComparison(_Frozen):
    """One metric of both models on the same samples.

    Attributes:
        samples: How many both models saw.
        share: Whether all scores are 0 or 1, so that their mean is a share of the samples, such as an accuracy.
        dense: Mean score of the dense model (Wilson's interval where scores are 0 or 1).
        pruned: Mean score of the pruned model.
        difference: Mean of pruned - dense per sample, with the paired bootstrap interval.
    """

    samples: int
    share: bool
    dense: Interval
    pruned: Interval
    difference: Interval


class PlanSummary(_Frozen):
    """What a plan removed, and who made it.

    Attributes:
        removed: Names of the units in the dense model, per kind, in the order of the edits.
        leaves: What stands in the place of each unit of depth.
        groups: How many channels, heads, neurons or experts every group of them keeps.
    """

    method: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)
    seed: int = 0
    removed: dict[str, list[str]] = Field(default_factory=dict)
    leaves: dict[str, str] = Field(default_factory=dict)
    groups: tuple[KeptGroup, ...] = ()

    @classmethod
    def of(cls, plan: Plan) -> PlanSummary:
        """Summarise a plan."""
        removed: dict[str, list[str]] = {}
        leaves: dict[str, str] = {}
        for unit in removed_units(plan.edits):
            removed.setdefault(unit.kind, []).append(unit.name)
            if unit.kind not in get_args(WidthKind):
                leaves[unit.name] = unit.leaves
        return cls(
            method=plan.made_by.method,
            arguments=plan.made_by.arguments,
            seed=plan.made_by.seed,
            removed=removed,
            leaves=leaves,
            groups=kept_groups(plan),
        )


class SearchCost(_Frozen):
    """What it took to find the plan."""

    seconds: float
    peak_memory_bytes: int | None = None
    trials: int | None = None


class Report(_Frozen):
    """Before and after.

    Attributes:
        dense: Cost of the dense model.
        pruned: Cost of the pruned model.
        block_macs: MACs of the blocks alone, dense and pruned, per batch; None for models of unknown structure.
        latency: The interleaved comparison; None if it was skipped.
        metrics: By name.
        plan: What was removed.
        search: What finding it took.
        seed: Seed of the bootstraps.
        details: Anything else worth keeping with the numbers, as JSON values (a history, a recipe, a note).
    """

    schema_name: Literal["prunerecover.report/1"] = Field(default="prunerecover.report/1", alias="schema")
    dense: Measurement
    pruned: Measurement
    block_macs: tuple[int, int] | None = None
    latency: LatencyRatio | None = None
    metrics: dict[str, MetricComparison] = Field(default_factory=dict)
    plan: PlanSummary | None = None
    search: SearchCost | None = None
    seed: int = 0
    details: dict[str, Any] = Field(default_factory=dict)

    @property
    def versions(self) -> dict[str, str]:
        """Versions of what computed."""
        return self.dense.versions

    @property
    def time_over_macs(self) -> float | None:
        """Share of the time left, divided by the share of the MACs left: 1 is ideal, above 1 is worse."""
        if self.latency is None:
            return None
        return self.latency.ratio.value / (self.pruned.macs / self.dense.macs)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """Read what `to_dict` returned.

        Raises:
            ValueError: If the data are not a report, or one of another schema.
        """
        found = data.get("schema")
        if found != SCHEMA:
            raise ValueError(
                f"Expected a report of schema '{SCHEMA}', but got '{found}'. Read it with the version that wrote it."
            )
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            raise ValueError(f"Expected a complete report, but {error}. Was the file edited?") from error

    def to_markdown(self, figures: Iterable[str] = ()) -> str:
        """Return the report as Markdown, with links to `figures` given as file names."""
        return report_text.markdown(self, figures)

    def table(self) -> Table:
        """Return the comparison as a table for the terminal."""
        return report_text.table(self)

    def save(self, folder: str | Path, figures: Mapping[str, Figure] | None = None) -> Path:
        """Write `report.md`, `report.json` and one PNG per figure into `folder`, and return the folder."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        names = [f"{name}.png" for name in figures or {}]
        for file, figure in zip(names, (figures or {}).values(), strict=True):
            figure.savefig(target / file, dpi=200)
        (target / "report.json").write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        (target / "report.md").write_text(self.to_markdown(names), encoding="utf-8")
        return target

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Read a `report.json`, or the one in a folder.

        Raises:
            ValueError: If the file holds no report.
        """
        file = Path(path)
        file = file / "report.json" if file.is_dir() else file
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"Expected JSON in {file}, but {error}. Was the file cut off?") from error
        return cls.from_dict(data if isinstance(data, dict) else {})
