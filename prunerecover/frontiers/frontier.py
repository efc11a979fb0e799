"""Frontier of a network: the divergence and the costs of plans for several shares, before the choice of a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prunerecover.cost.units.cost_names import COSTS, titled
from prunerecover.display.summary import Summarised, Summary
from prunerecover.plan.evidence import FrontierEvidence, FrontierPoint
from prunerecover.plan.plan import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Frontier(Summarised):
    """Savings and divergences of plans for several shares of a cost.

    Args:
        points: Plans in rising order of their shares.
        plan_at: Function that returns the plan for a share; None: the frontier is read from a file.
        cost: Cost of the shares, e.g. "macs" or "latency"; or several costs with equal shares.

    >>> print(Frontier([FrontierPoint(0.1, 0.02, {"macs": 0.11}), FrontierPoint(0.2, 0.14, {"macs": 0.2})]))
    Frontier over shares of the MACs
    asked  divergence  MACs
    10.0%  0.02        11.0%
    20.0%  0.14        20.0%
    """

    points: Sequence[FrontierPoint]
    plan_at: Callable[[float], Plan] | None = None
    cost: str | Sequence[str] = "macs"

    def __post_init__(self) -> None:
        """Check the points."""
        shares = [point.share for point in self.points]
        if not shares or any(one >= other for one, other in zip(shares, shares[1:], strict=False)):
            raise ValueError(
                f"Expected points of a frontier in rising order of their shares, at least one, but got {shares}. Sort "
                "them by `share`, and keep one plan for each."
            )
        if (costs := self._costs) == () or not set(costs) <= set(COSTS):
            raise ValueError(f"Expected the cost of a frontier to be one of {', '.join(COSTS)}, but got {self.cost!r}.")

    @classmethod
    def of(cls, evidence: Mapping[str, Any], plan_at: Callable[[float], Plan] | None = None) -> Frontier | None:
        """Return the frontier in the evidence of a plan, or None.

        Args:
            evidence: Evidence of a plan, `Plan.evidence`.
            plan_at: Function that returns the plan for a share, or None.
        """
        found = FrontierEvidence.of(evidence)
        return cls(found.frontier, plan_at, found.frontier_cost) if found.frontier else None

    @property
    def _costs(self) -> tuple[str, ...]:
        return (self.cost,) if isinstance(self.cost, str) else tuple(self.cost)

    def to_dict(self) -> dict[str, Any]:
        """Return the frontier as entries of a plan's evidence."""
        said = {"frontier": tuple(self.points), "frontier_cost": self.cost}
        return FrontierEvidence.model_validate(said).to_dict()

    def plan(self, share: float) -> Plan:
        """Return the plan for any share of the cost, also between the points; no variant is scored again.

        Args:
            share: Share to remove.

        Raises:
            RuntimeError: If the frontier is read from a file.
        """
        if self.plan_at is None:
            raise RuntimeError(
                "Expected a frontier of this process, but got one that is read from a plan: scores are not kept there. "
                f"Plan with Budget({', '.join(f'{cost}={share:g}' for cost in self._costs)})."
            )
        return self.plan_at(share)

    def summary(self) -> Summary:
        """Return a row for each point."""
        title = f"Frontier over shares of the {titled(self.cost)}"
        header, rows = frontier_table(self.points)
        return Summary.of_list(title, header, rows, tuple)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw divergence and costs over the shares; write a PNG if `path` is given.

        Args:
            path: File of the PNG.
        """
        from prunerecover.display.style import save_figure
        from prunerecover.frontiers.figure import plot_frontier

        figure = plot_frontier(self.points, self.cost)
        if path is not None:
            save_figure(figure, path)
        return figure


def frontier_table(points: Sequence[FrontierPoint]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the names of the columns, and a row for each point; unknown costs are empty.

    Args:
        points: Points of a frontier.
    """
    costs = [cost for cost in COSTS if any(cost in point.costs for point in points)]
    rows = [
        (
            f"{point.share:.1%}",
            f"{point.divergence:.3g}",
            *(f"{point.costs[cost]:.1%}" if cost in point.costs else "" for cost in costs),
        )
        for point in points
    ]
    return ("asked", "divergence", *(titled(cost) for cost in costs)), rows
