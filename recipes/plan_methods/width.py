"""Methods `width`, `per_cost` and `fair_pruner` of `prunerecover plan`: removal of channels, heads, neurons or experts.

Units are scored on the network's inputs at the start of a fit of the recipe, with the loss of the training step, as in
`WidthPrune`. Beside the plan lie a page with the kept units of every group (`<plan>.md`), a figure (`<plan>.kept.png`)
and the scores (`<plan>.scores.safetensors`); for `fair_pruner` also a figure of the two rankings (`<plan>.ranks.png`).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Unpack

from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.planning.width import WidthPlanning
from prunerecover.cost.memory import peak_memory, reset_peak_memory
from prunerecover.display.spelled_out import spelled_out
from prunerecover.display.style import save_figure
from prunerecover.files.atomic import write_text
from prunerecover.importance.measuring.names import name_of
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.importance.saved_scores import SavedScores
from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import PlanningCost, SearchEvidence
from prunerecover.plan.groups import Group
from prunerecover.plan.plan import Plan
from prunerecover.planning.plan_width import plan_with
from prunerecover.recipes.plan_methods.base import BudgetArguments, PlanningMethod, PlanTask, beside, parted
from prunerecover.recipes.plan_methods.width_page import page
from prunerecover.width.allocation.by_importance import removal_positions
from prunerecover.width.allocation.cost_model import Cost
from prunerecover.width.allocator import WidthAllocator
from prunerecover.width.arguments import WidthArguments, WidthConfig
from prunerecover.width.figure import plot_rankings


class WidthPlanArguments(BudgetArguments, WidthArguments, total=False):
    """Types of the arguments of `WidthPlan`, `PerCostPlan` and `FairPrunerPlan`."""


class WidthMethod(PlanningMethod):
    """Method that decides as `WidthPrune` does; see `PlanningMethod`."""

    _scores: dict[str, Scores]
    _groups: tuple[Group, ...]
    _dense: Cost

    def make(self, task: PlanTask) -> Plan:
        """Return the plan of `WidthPrune` at the start of a fit.

        Raises:
            ValueError: If the plan removes nothing.
        """
        device = task.module.device
        reset_peak_memory(device)
        started = time.perf_counter()
        plan = super().make(task)
        if not plan.edits:
            raise ValueError(
                "Expected a budget or a tolerance by which something goes, but got "
                f"{self.budget or self.config.tolerance}. Raise it."
            )
        cost = PlanningCost(seconds=time.perf_counter() - started, peak_memory_bytes=peak_memory(device))
        return plan.model_copy(update={"evidence": {**plan.evidence, **SearchEvidence(search=cost).to_dict()}})

    def decide(self, surgery: Surgery) -> Plan:
        """Return the plan; scores are kept for the pages."""
        session = surgery.session(surgery.scoring_loss(self.config.loss))
        return self._plan(WidthAllocator(session, self.planning.config_of(self.budget)))

    def write(self, plan: Plan, output: Path) -> None:
        """Write the plan, the page, the figures and the scores."""
        plan.save(output)
        figures = {"What every group keeps": beside(output, ".kept.png")}
        plan.plot(figures["What every group keeps"])
        SavedScores(plan.source.weights or "", self._scores).save(beside(output, ".scores.safetensors"))
        if len(self._scores) == 2:
            (first, low), (second, high) = self._scores.items()
            order = removal_positions(self._groups, low)
            figure = plot_rankings(plan, order, high, names=(first, second))
            figures["The two rankings"] = beside(output, ".ranks.png")
            save_figure(figure, figures["The two rankings"])
        names = {title: file.name for title, file in figures.items()}
        write_text(beside(output, ".md"), page(plan, self._dense, output.name, names))

    def _plan(self, planner: WidthAllocator) -> Plan:
        """Plan, and keep what the pages are written from."""
        plan = plan_with(planner, self.budget)
        importances = self.config.importances
        names = [name_of(importance) for importance in importances]
        if len(set(names)) < len(names) and importances[0] != importances[1]:
            names = [f"{name}, {role}" for name, role in zip(names, ("low goes", "high stays"), strict=True)]
        self._scores = dict(zip(names, planner.scores(*importances), strict=True))
        self._groups, self._dense = planner.groups, planner.costs.full
        return plan


@spelled_out(WidthConfig, Budget)
class WidthPlan(WidthMethod):
    """Remove channels, heads, neurons or experts as `WidthPrune` does (`plan_width`'s default).

    Args:
        scores: File of scores beside an earlier plan of the same network: nothing is scored again.
    """

    def __init__(self, **arguments: Unpack[WidthPlanArguments]) -> None:
        budget, planning = parted(arguments)
        super().__init__(WidthPlanning(**planning), Budget(**budget) if budget else None)


@spelled_out(WidthPlan)
class PerCostPlan(WidthPlan):
    """Remove the channels, heads, neurons or experts of least importance per saved cost."""

    def __init__(self, **arguments: Unpack[WidthPlanArguments]) -> None:
        arguments["allocation"] = arguments.get("allocation") or "per_cost"
        super().__init__(**arguments)


@spelled_out(WidthPlan)
class FairPrunerPlan(WidthPlan):
    """Remove channels, heads, neurons or experts by FAIR-Pruner's Tolerance of Difference (arXiv 2508.02291).

    Args:
        tolerance: Number in [0, 1] for all groups, as published: the share of removed units that the second importance
            may object to. Or give exactly one budget, for which a tolerance is searched.

    Raises:
        ValueError: If the arguments do not fit together.
    """

    def __init__(self, **arguments: Unpack[WidthPlanArguments]) -> None:
        if (other := arguments.get("allocation")) not in (None, "fair_pruner"):
            raise ValueError(
                f"Expected no allocation for the method fair_pruner, but got {other!r}. Use the method width."
            )
        arguments["allocation"] = "fair_pruner"
        super().__init__(**arguments)
