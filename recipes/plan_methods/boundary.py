"""Method `boundary` of `prunerecover plan`: BoundaryDPT's search (arXiv 2607.03784) on a recipe's module and data.

Beside the plan lie the trials (`<plan>.trials.jsonl`, from which a killed search goes on), a page with the trial table
and the cost of the search (`<plan>.md`), and a figure of the accuracy map (`<plan>.map.png`).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prunerecover.boundary.accuracy_map import AccuracyMap
from prunerecover.boundary.designs import Split
from prunerecover.boundary.feasible import TYPES, feasible_within
from prunerecover.boundary.figure import plot_map
from prunerecover.boundary.plan_boundary import PUBLISHED
from prunerecover.boundary.search import BoundaryConfig, BoundarySearch
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.trials.records import TrialRecord, table
from prunerecover.callbacks.trials.runner import TrialRunner, TrialSettings, resumable_trials
from prunerecover.cost.memory import peak_memory, reset_peak_memory
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.display.progress import progress
from prunerecover.display.style import save_figure
from prunerecover.files.atomic import write_text
from prunerecover.importance.context import Importance
from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import BoundaryEvidence, PlanningCost, SearchEvidence
from prunerecover.plan.plan import Plan
from prunerecover.recipes.plan_methods.base import PlanMethod, PlanTask, beside
from prunerecover.store.ranks import from_first_rank


class BoundaryPlan(PlanMethod):
    """Find how many attentions and activations to remove by short recoveries: BoundaryDPT (`plan_boundary`).

    Args:
        n_remove: Number of attentions and activations to remove, both together. Give exactly one budget.
        n_keep: Number of attentions and activations to keep, both together.
        macs: Share of the MACs to remove; or the MACs of a sample that may be left, such as 0.8G.
        params: Share of the parameters to remove; or the parameters that may be left, such as 100M.
        latency: Share of the measured latency to remove; or the time for the first batch that may be left, such as 5ms.
        trials: Settings of training and evaluation in each short recovery.
        design: Splits to try: `line`, `spread`, `axes_and_staircase`, or a list of (attentions, activations) removed.
        runs: Number of recoveries in `line` and `spread`.
        surface: Model of the accuracy: `polynomial`, `gaussian_process` or `parabola`; None takes the surface for the
            design.
        noise: Standard deviation of the accuracy of a recovery, in points.
        importance: Importance that ranks the units of a type.
        replace: Replacement of removed units: `calibrated`, `zero` or `identity`.
        search: Search in depth, `one_shot` or `greedy`; None takes the better possible search.
        ignore: Shell patterns of units that stay.
        seed: Seed of all random draws.
    """

    def __init__(
        self,
        n_remove: int | None = None,
        n_keep: int | None = None,
        macs: float | str | None = None,
        params: float | str | None = None,
        latency: float | str | None = None,
        trials: TrialSettings | None = None,
        design: str | list[tuple[int, int]] = "line",
        runs: int = 5,
        surface: str | None = None,
        noise: float = 0.5,
        importance: Importance | str = "output_divergence",
        replace: str = "calibrated",
        search: str | None = None,
        ignore: list[str] | None = None,
        seed: int = 0,
    ) -> None:
        given: dict[str, Any] = {"macs": macs, "params": params, "latency": latency}
        shares = {name: value for name, value in given.items() if value is not None}
        self.budget = Budget(**shares) if shares else None
        self.counts = {"n_remove": n_remove, "n_keep": n_keep}
        self.trials = trials or TrialSettings()
        self.config = BoundaryConfig(design=design, runs=runs, surface=surface, noise=noise, seed=seed)
        self.depth = DepthConfig(importance=importance, replace=replace, search=search, ignore=ignore or (), seed=seed)
        self._found: tuple[AccuracyMap, Sequence[Split], list[TrialRecord]] | None = None

    def make(self, task: PlanTask) -> Plan:
        """Return the plan of the best split."""
        started, device = time.perf_counter(), task.module.device
        store = beside(task.output, ".trials.jsonl")
        with resumable_trials(store):
            reset_peak_memory(device)
            planner = self._planner(task)
            feasible = feasible_within(planner, self.budget, **self.counts)
            most = peak_memory(device)  # each trial resets the peak
            runner = TrialRunner(task.module, task.datamodule, store, self.trials, task.target)
            search = BoundarySearch(
                planner,
                from_first_rank(feasible.splits),  # measured latencies differ among ranks
                runner,
                self.config,
                more=lambda plan: from_first_rank(feasible.more(plan)),
            )
            with progress("recovering pruned models for a while", search.n_runs) as advance:
                runner.after_trial = advance
                fitted, plan = search.run()
        self._found = (fitted, search.splits, runner.records)
        asked = {**self.counts, **(self.budget.to_dict() if self.budget else {})}
        cost = PlanningCost(
            asked={name: value for name, value in asked.items() if value is not None},
            seconds=time.perf_counter() - started,
            trial_seconds=sum(record.seconds for record in runner.records),
            peak_memory_bytes=max(most, peak_memory(device), *(r.peak_memory_bytes for r in runner.records)),
            trials=len(runner.records),
        )
        return plan.model_copy(update={"evidence": {**plan.evidence, **SearchEvidence(search=cost).to_dict()}})

    def _planner(self, task: PlanTask) -> DepthSearch:
        """Return the planner of splits, calibrated and scored at the start of a fit, as in `DepthPrune`."""

        def start(surgery: Surgery) -> DepthSearch:
            config = dataclasses.replace(self.depth, loss=surgery.loss if self.depth.reads_loss else None)
            planner = DepthSearch(surgery.session(config.loss), TYPES, config)
            if config.reads_loss:
                planner.rank()  # the loss needs the training step of the fit
            return planner

        planner = task.at_start(start, self.depth.seed)
        planner.model.to(task.module.device)  # the end of a fit moves the model to the CPU
        return planner

    def write(self, plan: Plan, output: Path) -> None:
        """Write the plan, the page and the figure."""
        assert self._found is not None
        fitted, splits, records = self._found
        plan.save(output)
        figure = beside(output, ".map.png")
        save_figure(plot_map(fitted, splits, fitted.best(splits=splits)), figure)
        write_text(beside(output, ".md"), page_of(plan, records, figure.name))


class BoundaryDPTPlan(BoundaryPlan):
    """Run BoundaryDPT as published: 22 runs, a polynomial surface, gate gradients per type, identity replacements.

    Args:
        n_remove: Number of attentions and activations to remove, both together; or give `n_keep`.
        n_keep: Number of attentions and activations to keep, both together.
        trials: Settings of training and evaluation in each short recovery.
        noise: Standard deviation of the accuracy of a recovery, in points.
        ignore: Shell patterns of units that stay.
        seed: Seed of all random draws.
    """

    def __init__(
        self,
        n_remove: int | None = None,
        n_keep: int | None = None,
        trials: TrialSettings | None = None,
        noise: float = 0.5,
        ignore: list[str] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_remove, n_keep, trials=trials, noise=noise, ignore=ignore, seed=seed, **PUBLISHED)


def page_of(plan: Plan, records: Sequence[TrialRecord], figure: str) -> str:
    """Return the page of a search, Markdown: budget, prediction, plan, trials, and the cost of the search.

    Args:
        plan: Plan of `BoundaryPlan.make`, with the prediction and the cost of the search as evidence.
        records: Records of the trials.
        figure: File name of the accuracy map, beside the page.
    """
    predicted, cost = BoundaryEvidence.of(plan.evidence).predicted, SearchEvidence.of(plan.evidence).search
    assert predicted is not None, "the search has picked"
    assert cost is not None, "the command line has measured"
    regret = predicted.regret
    attention, activation = (len(plan.removed.get(kind, ())) for kind in TYPES)
    asked = ", ".join(f"{name}={value}" for name, value in cost.asked.items())
    picked = (predicted.attention, predicted.activation) == (attention, activation)
    further = "" if picked else " The pick saves less than was asked for; this is the nearest split that saves enough."
    units = ", ".join(name for kind in TYPES for name in plan.removed.get(kind, ()))
    lines = [
        "# Search for the best split between attentions and activations",
        "",
        f"Asked for: {asked}. Picked: {predicted.attention} attentions and {predicted.activation} activations.",
        f"Predicted accuracy after a short recovery: {predicted.accuracy:.2f}%. The truly best split may be better "
        f"by {regret.value:.2f} points (95%: {regret.low:.2f} to {regret.high:.2f}).",
        "",
        f"Planned: {attention} attentions and {activation} activations removed ({units}).{further}",
        "",
        f"![Accuracy map]({figure})",
        "",
        table(records),
        "",
        f"The {cost.trials} trials took {cost.trial_seconds / 60:.1f} minutes, those of an earlier, interrupted "
        f"search counted; this search took {cost.seconds / 60:.1f} minutes, planning counted. Peak memory "
        f"{(cost.peak_memory_bytes or 0) / 2**20:,.0f} MiB.",
    ]
    return "\n".join(lines) + "\n"
