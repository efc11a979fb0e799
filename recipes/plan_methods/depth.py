"""`prunerecover plan --method depth`: blocks, attentions, MLPs, activations and layers go.

What is found on the way lies in `<plan>.search` until the plan is written: a command that is interrupted goes on.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from prunerecover.callbacks.depth_prune import DepthPrune
from prunerecover.importance.context import Importance
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.recipes.plan_methods.base import (
    AnyNetworkMethod,
    PlanTask,
    decided_at_start,
    save_found,
    search_store,
)


class DepthPlan(AnyNetworkMethod):
    """Remove whole blocks, attentions, MLPs, activations or layers (`plan_depth`).

    Args:
        remove: Units per kind, for example `{"activation": 3, "attention": 2}`. Give one budget.
        ratio: Share of the units per kind.
        macs: Share of the MACs to remove.
        params: Share of the parameters to remove.
        latency: Share of the measured latency to remove.
        importance: What ranks the units, by name or as the import path of a callable; the default needs no labels.
        replace: What removed units leave: `calibrated`, `zero` or `identity`.
        search: `joint`, `greedy`, `exact`, `run` or `one_shot`; None takes the best that is possible.
        kinds: For a share of a cost: of the units that may go; None: all but `layer` in supported families.
        ignore: Shell patterns of units that stay.
        scores: File of scores that `--method sensitivity` wrote for the same network: units are not ranked again.
        seed: Of everything random.
    """

    def __init__(
        self,
        remove: dict[str, int] | None = None,
        ratio: dict[str, float] | None = None,
        macs: float | None = None,
        params: float | None = None,
        latency: float | None = None,
        importance: Importance | str = "output_divergence",
        replace: str = "calibrated",
        search: str | None = None,
        kinds: list[str] | None = None,
        ignore: list[str] | None = None,
        scores: str | None = None,
        seed: int = 0,
    ) -> None:
        budget = budget_from(remove=remove, ratio=ratio, macs=macs, params=params, latency=latency)
        self.planning: dict[str, Any] = {"budget": budget, "importance": importance, "replace": replace}
        self.planning |= {"search": search, "kinds": kinds, "ignore": tuple(ignore or ()), "seed": seed}
        self.scores = scores

    def make(self, task: PlanTask) -> Plan:
        """Return the plan that `DepthPrune` would make at the start of a fit."""
        prune = DepthPrune(**self.planning, calibration=task.calibration, store=search_store(task.output))
        prune.config = dataclasses.replace(prune.config, scores=self.scores)
        return decided_at_start(prune, task)

    def write(self, plan: Plan, output: Path) -> None:
        """Write the plan."""
        save_found(plan, output)


def budget_from(**given: Any) -> Budget:
    """Return the budget of those of its arguments that were given."""
    return Budget(**{name: value for name, value in given.items() if value is not None})
