"""`prunerecover plan --method per_cost` and `--method fair`: which channels, heads, neurons or experts go.

Scored on what the network gets at the start of a fit of the recipe, with the loss that its training step returns, as
`WidthPrune` scores. Beside the plan lie a page with what every group keeps (`<plan>.md`), a figure of it
(`<plan>.kept.png`) and the scores (`<plan>.scores.safetensors`); for `fair` also a figure of the two rankings
(`<plan>.ranks.png`).
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from prunerecover.callbacks.calibration.capture import labels_of_captured
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.trials.nested import at_start_of_fit
from prunerecover.cost.memory import peak_memory, reset_peak_memory
from prunerecover.display.style import save_figure
from prunerecover.files.atomic import write_text
from prunerecover.importance.context import Importance
from prunerecover.importance.measuring.names import name_of
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.importance.saved_scores import SavedScores
from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import PlanningCost, SearchEvidence
from prunerecover.plan.groups import Group
from prunerecover.plan.plan import Plan
from prunerecover.recipes.plan_methods.base import AnyNetworkMethod, PlanTask, beside
from prunerecover.recipes.plan_methods.width_page import page
from prunerecover.width.allocation.cost_model import Cost
from prunerecover.width.allocation.registry import AllocationRule
from prunerecover.width.allocation.removal_order import removal_positions
from prunerecover.width.arguments import WidthConfig, WidthReplace
from prunerecover.width.figure import plot_rankings
from prunerecover.width.groups.discovery import FOUND_KINDS
from prunerecover.width.planner import WidthPlanner


class WidthPlan(AnyNetworkMethod):
    """What both methods have in common.

    Args:
        config: See `plan_width`.
        budgets: By the names of `Budget`'s arguments; at most one is not None.
    """

    def __init__(self, config: WidthConfig, **budgets: Any) -> None:
        given = {name: budget for name, budget in budgets.items() if budget is not None}
        self.budget = Budget(**given) if given else None
        self.config = config.for_budget(self.budget)
        self._scores: dict[str, Scores] = {}
        self._groups: tuple[Group, ...] = ()
        self._dense = Cost(0, 0)

    def make(self, task: PlanTask) -> Plan:
        """Return the plan that `WidthPrune` would make at the start of a fit.

        Raises:
            ValueError: If nothing would go.
        """

        def decide(trainer: pl.Trainer, module: pl.LightningModule) -> Plan:
            surgery = Surgery(trainer, module, task.target, task.calibration, self.config.seed)
            config = dataclasses.replace(self.config, labels=labels_of_captured())
            return self._plan(WidthPlanner(surgery.session(surgery.loss), config))

        device = task.module.device
        reset_peak_memory(device)
        started = time.perf_counter()
        plan = at_start_of_fit(task.module, task.datamodule, decide, self.config.seed)
        if not plan.edits:
            raise ValueError(
                "Expected a budget or a tolerance by which something goes, but got "
                f"{self.budget or self.config.tolerance}. Raise it."
            )
        cost = PlanningCost(seconds=time.perf_counter() - started, peak_memory_bytes=peak_memory(device))
        return plan.model_copy(update={"evidence": {**plan.evidence, **SearchEvidence(search=cost).to_dict()}})

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

    def _plan(self, planner: WidthPlanner) -> Plan:
        """Plan, and keep what the pages are written from."""
        plan = planner.plan(self.budget, self.config)
        importances = self.config.importances
        names = [name_of(importance) for importance in importances]
        if len(set(names)) < len(names) and importances[0] != importances[1]:
            names = [f"{name}, {role}" for name, role in zip(names, ("low goes", "high stays"), strict=True)]
        self._scores = dict(zip(names, planner.scores(*importances), strict=True))
        self._groups, self._dense = planner.groups, planner.costs.full
        return plan


class PerCostPlan(WidthPlan):
    """Remove the channels, heads, neurons or experts that matter least for what they save (`plan_width`'s default).

    Args:
        macs: Share of the MACs to remove. Give one budget.
        params: Share of the parameters to remove.
        latency: Share of the measured latency to remove.
        remove: Units of one kind, in all groups together, for example `{"expert": 8}`.
        ratio: Share of the units of one kind, in all groups together.
        importance: What says how much a unit matters: `gate_taylor`, `r_score`, `fisher`, `u_score`, `taylor`,
            `squared_taylor`, `magnitude`, `l2_norm`, `random`, for experts `routing` and `reap`, of torch-pruning
            `group_taylor`, `group_magnitude`, `lamp`, `fpgm` or `bn_scale`; or the import path of a callable, or the
            class path of one with its arguments.
        kinds: Among `channel`, `head`, `neuron`, `expert` and `hidden`; None takes the first three.
        replace: `calibrated` (weights that read a group take over what its removed units did) or `zero`.
        ignore: Shell patterns of groups that stay, such as `layer4.*`.
        scores: File of scores that was written beside an earlier plan of the same network: nothing is scored again.
        seed: Of everything random.
        equal_layers: Layers of one kind and size keep one number of units, which a config of transformers can say.
        round_to: What a group keeps is a multiple of this number: `8` for channels and neurons, or one per kind, such
            as `{"channel": 8, "neuron": 64}`. None: any; for a latency 8 is tried, too.
        allocation: Another way to choose among the groups: `uniform`, `global`, or the import path of a callable.
    """

    def __init__(
        self,
        macs: float | None = None,
        params: float | None = None,
        latency: float | None = None,
        remove: dict[str, int] | None = None,
        ratio: dict[str, float] | None = None,
        importance: Importance | str = "gate_taylor",
        kinds: list[str] | None = None,
        replace: WidthReplace = "calibrated",
        ignore: list[str] | None = None,
        scores: str | None = None,
        seed: int = 0,
        equal_layers: bool = False,
        round_to: int | dict[str, int] | None = None,
        allocation: AllocationRule | str = "per_cost",
    ) -> None:
        config = WidthConfig(
            allocation=allocation,
            importance=importance,
            replace=replace,
            kinds=kinds or FOUND_KINDS,
            ignore=ignore or (),
            scores=scores,
            seed=seed,
            equal_layers=equal_layers,
            round_to=round_to,
        )
        super().__init__(config, macs=macs, params=params, latency=latency, remove=remove, ratio=ratio)


class FairPlan(WidthPlan):
    """Remove channels, heads, neurons or experts by FAIR-Pruner's Tolerance of Difference (arXiv 2508.02291).

    Args:
        tolerance: One number in [0, 1] for all groups, as published: the share of what goes that the second
            importance may object to. Or give exactly one budget, for which it is searched.
        macs: Share of the MACs to remove.
        params: Share of the parameters to remove.
        latency: Share of the measured latency to remove.
        remove: Units of one kind, in all groups together, for example `{"expert": 8}`.
        ratio: Share of the units of one kind, in all groups together.
        importance: The one whose low values propose what goes, and the one whose high values stay, such as
            `[u_score, r_score]`; each as of `per_cost`.
        kinds: Among `channel`, `head`, `neuron`, `expert` and `hidden`; None takes the first three.
        replace: `calibrated` (weights that read a group take over what its removed units did) or `zero`.
        ignore: Shell patterns of groups that stay, such as `layer4.*`.
        scores: File of scores that was written beside an earlier plan of the same network: nothing is scored again.
        seed: Of everything random.
        equal_layers: Layers of one kind and size keep one number of units, which a config of transformers can say.
        round_to: What a group keeps is a multiple of this number: `8` for channels and neurons, or one per kind, such
            as `{"channel": 8, "neuron": 64}`. None: any; for a latency 8 is tried, too.
    """

    def __init__(
        self,
        tolerance: float | None = None,
        macs: float | None = None,
        params: float | None = None,
        latency: float | None = None,
        remove: dict[str, int] | None = None,
        ratio: dict[str, float] | None = None,
        importance: tuple[Importance | str, Importance | str] = ("u_score", "r_score"),
        kinds: list[str] | None = None,
        replace: WidthReplace = "calibrated",
        ignore: list[str] | None = None,
        scores: str | None = None,
        seed: int = 0,
        equal_layers: bool = False,
        round_to: int | dict[str, int] | None = None,
    ) -> None:
        config = WidthConfig(
            allocation="tolerance",
            importance=importance,
            tolerance=tolerance,
            replace=replace,
            kinds=kinds or FOUND_KINDS,
            ignore=ignore or (),
            scores=scores,
            seed=seed,
            equal_layers=equal_layers,
            round_to=round_to,
        )
        super().__init__(config, macs=macs, params=params, latency=latency, remove=remove, ratio=ratio)
