"""`prunerecover plan --method boundary`: BoundaryDPT's search (arXiv 2607.03784) on a recipe's module and data.

Beside the plan lie the trials (`<plan>.trials.jsonl`: a search that was killed goes on from there), a page with the
trial table and what the search took (`<plan>.md`), and a figure of the accuracy map (`<plan>.map.png`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prunerecover.accuracy_map import AccuracyMap
from prunerecover.boundary import PUBLISHED, BoundarySearch
from prunerecover.boundary_budget import TYPES, feasible_within
from prunerecover.budget import Budget
from prunerecover.callbacks.trial_records import TrialRecord, table
from prunerecover.callbacks.trials import TrialRunner, TrialSettings, from_first_rank
from prunerecover.depth import DepthPlanner
from prunerecover.designs import Split
from prunerecover.map_figure import plot_map
from prunerecover.memory import peak_memory
from prunerecover.plan import Plan
from prunerecover.recipes.planning import PlanMethod, PlanTask, beside


class BoundaryPlan(PlanMethod):
    """Find how many attentions and activations go by short recoveries, and which ones (`plan_boundary`).

    Args:
        n_remove: Attentions and activations to remove, both together. Give exactly one budget.
        n_keep: Attentions and activations to keep, both together.
        macs: Share of the MACs to remove.
        params: Share of the parameters to remove.
        latency: Share of the measured latency to remove.
        trials: How each short recovery trains and is judged.
        design: Which splits are tried: `line`, `spread`, `axes_and_staircase`, `one_type_at_a_time`, `interleaved`, or
            a list of (attentions, activations) removed.
        runs: How many recoveries `line` and `spread` make.
        surface: `polynomial`, `gaussian_process` or `parabola`; None takes what suits the design.
        noise: Standard deviation of the accuracy of one recovery, in points.
        importance: What ranks the units of one type.
        replace: What removed units leave: `calibrated`, `zero` or `identity`.
        search: `one_shot` or `greedy`; None takes the better one that is possible.
        ignore: Shell patterns of units that stay.
        seed: Of everything random.
    """

    def __init__(
        self,
        n_remove: int | None = None,
        n_keep: int | None = None,
        macs: float | None = None,
        params: float | None = None,
        latency: float | None = None,
        trials: TrialSettings | None = None,
        design: str | list[tuple[int, int]] = "line",
        runs: int = 5,
        surface: str | None = None,
        noise: float = 0.5,
        importance: str = "output_divergence",
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
        self.searching: dict[str, Any] = {"design": design, "runs": runs, "surface": surface, "noise": noise}
        self.planning: dict[str, Any] = {"importance": importance, "replace": replace, "search": search}
        self.planning["ignore"] = tuple(ignore or ())
        self.seed = seed
        self._found: tuple[AccuracyMap, Sequence[Split], list[TrialRecord]] | None = None

    def make(self, task: PlanTask) -> Plan:
        """Return the plan of the best split."""
        started = time.perf_counter()
        planner = DepthPlanner(
            task.network, TYPES, batches=task.batches, loss=task.loss, seed=self.seed, **self.planning
        )
        feasible = feasible_within(planner, self.budget, **self.counts)
        runner = TrialRunner(
            task.module, task.datamodule, beside(task.output, ".trials.jsonl"), self.trials, task.target
        )
        search = BoundarySearch(
            planner,
            from_first_rank(feasible.splits),  # a latency is measured
            runner,
            seed=self.seed,
            more=lambda plan: from_first_rank(feasible.more(plan)),
            **self.searching,
        )
        fitted, plan = search.run()
        self._found = (fitted, search.splits, runner.records)
        cost = {
            "seconds": time.perf_counter() - started,
            "peak_memory_bytes": peak_memory(task.module.device),
            "trials": len(runner.records),
        }
        return plan.model_copy(update={"evidence": {**plan.evidence, "search": cost}})

    def write(self, plan: Plan, output: Path) -> None:
        """Write the plan, the page and the figure."""
        assert self._found is not None
        fitted, splits, records = self._found
        plan.save(output)
        figure = beside(output, ".map.png")
        plot_map(fitted, splits, fitted.best(splits=splits)).savefig(figure, dpi=150, bbox_inches="tight")
        beside(output, ".md").write_text(_page(plan, records, figure.name), encoding="utf-8")


class PublishedBoundaryPlan(BoundaryPlan):
    """The search by the book: 22 runs, a polynomial surface, gate gradients within each type, identities left behind.

    Args:
        n_remove: Attentions and activations to remove, both together, or
        n_keep: to keep.
        trials: How each short recovery trains and is judged.
        noise: Standard deviation of the accuracy of one recovery, in points.
        ignore: Shell patterns of units that stay.
        seed: Of everything random.
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


def _page(plan: Plan, records: list[TrialRecord], figure: str) -> str:
    predicted, cost = plan.evidence["predicted"], plan.evidence["search"]
    regret = predicted["regret"]
    counts = {kind: len(plan.removed.get(kind, ())) for kind in TYPES}
    units = ", ".join(name for kind in TYPES for name in plan.removed.get(kind, ()))
    lines = [
        "# Search for the best split between attentions and activations",
        "",
        f"Picked: {counts['attention']} attentions and {counts['activation']} activations removed ({units}).",
        f"Predicted accuracy after a short recovery: {predicted['accuracy']:.2f}%. The truly best split may be better "
        f"by {regret['value']:.2f} points (95%: {regret['low']:.2f} to {regret['high']:.2f}).",
        "",
        f"![Accuracy map]({figure})",
        "",
        table(records),
        "",
        f"The search took {cost['seconds'] / 60:.1f} minutes for {cost['trials']} trials, those of an earlier, "
        f"interrupted search not counted; peak memory {cost['peak_memory_bytes'] / 2**20:,.0f} MiB.",
    ]
    return "\n".join(lines) + "\n"
