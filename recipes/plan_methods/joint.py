"""`prunerecover plan --method joint`: units of depth and of width go within one budget.

Splits that are recovered (`--method.search recovered`) leave their trials beside the plan (`<plan>.trials.jsonl`), from
which a search that was killed goes on, and a page with their table (`<plan>.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl

from prunerecover.boundary.search import Trial
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.prune import Prune
from prunerecover.callbacks.trials.nested import all_ranks, among, at_start_of_fit
from prunerecover.callbacks.trials.records import table
from prunerecover.callbacks.trials.runner import TrialRunner, TrialSettings, resumable_trials
from prunerecover.files.atomic import write_text
from prunerecover.plan.evidence import SplitEvidence, TriedSplit
from prunerecover.plan.plan import Plan
from prunerecover.recipes.plan_methods.base import AnyNetworkMethod, PlanTask, beside, decided_at_start
from prunerecover.recipes.plan_methods.depth import budget_from


class JointPlan(AnyNetworkMethod):
    """Remove units of depth and of width within one budget (`plan_pruning`).

    Args:
        macs: Share of the MACs to remove. Give one budget.
        params: Share of the parameters to remove.
        latency: Share of the measured latency to remove.
        search: How splits between depth and width are compared: by the `divergence` of their outputs, or `recovered`
            for a short while each, in this module and on its data.
        trials: How each short recovery trains and is judged.
        kinds: Of the units that may go, in depth and width; None: all that are usual, and experts for `params`.
        equal_layers: Layers of one kind and size keep one number of units, which a config of transformers can say.
        round_to: What a group keeps is a multiple of this number: `8` for channels and neurons, or one per kind, such
            as `{"channel": 8, "neuron": 64}`. None: any.
        ignore: Shell patterns of units and groups that stay.
        seed: Of everything random.

    Raises:
        ValueError: If the arguments do not fit together.
    """

    def __init__(
        self,
        macs: float | None = None,
        params: float | None = None,
        latency: float | None = None,
        search: Literal["divergence", "recovered"] = "divergence",
        trials: TrialSettings | None = None,
        kinds: list[str] | None = None,
        equal_layers: bool = False,
        round_to: int | dict[str, int] | None = None,
        ignore: list[str] | None = None,
        seed: int = 0,
    ) -> None:
        if trials is not None and search != "recovered":
            raise ValueError("Expected no trials, as splits are compared by their outputs. Add search=recovered.")
        self.recovers, self.trials = search == "recovered", trials or TrialSettings()
        self.planning: dict[str, Any] = {
            "budget": budget_from(macs=macs, params=params, latency=latency),
            "kinds": kinds,
            "equal_layers": equal_layers,
            "round_to": round_to,
            "ignore": tuple(ignore or ()),
            "seed": seed,
        }
        self._runner: TrialRunner | None = None

    def make(self, task: PlanTask) -> Plan:
        """Return the plan that `Prune` would make at the start of a fit, or that of the split that recovers best."""
        prune = Prune(**self.planning, calibration=task.calibration)
        return self._recovered(prune, task) if self.recovers else decided_at_start(prune, task)

    def _recovered(self, prune: Prune, task: PlanTask) -> Plan:
        store, ranks = beside(task.output, ".trials.jsonl"), all_ranks()
        self._runner = runner = TrialRunner(task.module, task.datamodule, store, self.trials, task.target)

        def evaluate(trials: Sequence[Trial]) -> list[float]:
            with among(ranks):  # planning is alone, and recoveries are shared
                return runner(trials)

        def decide(trainer: pl.Trainer, module: pl.LightningModule) -> Plan:
            surgery = Surgery(trainer, module, task.target, prune.calibration, prune.seed)
            return prune.decide(surgery, prune.budget, evaluate)

        with resumable_trials(store):
            return at_start_of_fit(task.module, task.datamodule, decide, prune.seed)

    def write(self, plan: Plan, output: Path) -> None:
        """Write the plan, and of splits that were recovered a page."""
        plan.save(output)
        if self._runner is not None:
            write_text(beside(output, ".md"), page_of(plan, self._runner))


def page_of(plan: Plan, runner: TrialRunner) -> str:
    """Return the page of a search by recoveries, Markdown: how accurate each split was, and what its trial took.

    Args:
        plan: What the search returned.
        runner: That made its trials.
    """
    found = SplitEvidence.of(plan.evidence)
    lines = [
        "# Search for the best split between depth and width",
        "",
        f"Picked: {found.depth_share:.1%} of the budget in depth. Accuracy after a short recovery:",
        "",
        *(f"- {one.depth:.1%} of the budget in depth: {_told(one)}" for one in found.splits),
        "",
        table(runner.records),
    ]
    return "\n".join(lines) + "\n"


def _told(split: TriedSplit) -> str:
    if split.accuracy is None:
        return split.refused or "the only one that can be, not recovered"
    return f"{split.accuracy:.2f}%"
