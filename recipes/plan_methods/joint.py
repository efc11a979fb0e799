"""Method `joint` of `prunerecover plan`: removal of units of depth and of width within one budget.

Results of the search lie in `<plan>.search` until the plan is written: an interrupted command goes on behind them.
Recovered splits (`--method.recover true`) leave trials beside the plan (`<plan>.trials.jsonl`, from which a killed
search goes on), and a page with the table of trials (`<plan>.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Unpack

from prunerecover.boundary.search import Trial
from prunerecover.callbacks.planning.joint import JointPlanning, PruningArguments
from prunerecover.callbacks.trials.nested import all_ranks, among
from prunerecover.callbacks.trials.records import table
from prunerecover.callbacks.trials.runner import TrialRunner, TrialSettings, resumable_trials
from prunerecover.display.spelled_out import spelled_out
from prunerecover.files.atomic import write_text
from prunerecover.former import renamed
from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import SplitEvidence, TriedSplit
from prunerecover.plan.plan import Plan
from prunerecover.planning.arguments import PruningConfig
from prunerecover.recipes.plan_methods.base import PlanTask, SearchMethod, ShareArguments, beside, parted


class JointMethod(SearchMethod):
    """Method that decides as `Prune` does; see `PlanningMethod`.

    Attributes:
        trials: Settings of training and evaluation in a short recovery of each split; None: splits are compared by
            their outputs.
    """

    trials: TrialSettings | None = None
    _runner: TrialRunner | None = None

    def make(self, task: PlanTask) -> Plan:
        """Return the plan of `Prune` at the start of a fit, or the plan of the split with the best recovery."""
        if self.trials is None:
            return super().make(task)
        store, ranks = beside(task.output, ".trials.jsonl"), all_ranks()
        self._runner = runner = TrialRunner(task.module, task.datamodule, store, self.trials, task.target)

        def evaluate(trials: Sequence[Trial]) -> list[float]:
            with among(ranks):  # planning runs on a single rank, recoveries are shared
                return runner(trials)

        self.planning.evaluate = evaluate
        with resumable_trials(store):
            return super().make(task)

    def write(self, plan: Plan, output: Path) -> None:
        """Write the plan, and a page if splits were recovered."""
        super().write(plan, output)
        if self._runner is not None:
            write_text(beside(output, ".md"), page_of(plan, self._runner))


class JointPlanArguments(ShareArguments, PruningArguments, total=False):
    """Types of further arguments of `JointPlan`."""


@spelled_out(PruningConfig, PruningArguments, Budget)
class JointPlan(JointMethod):
    """Remove units of depth and of width within one budget (`plan_pruning`).

    Args:
        recover: Whether splits between depth and width are compared after a short recovery each, in this module and on
            its data, instead of by the divergence of their outputs.
        trials: Settings of training and evaluation in each short recovery.
        store: Folder of the results of the search; None: beside the plan, until that is written.
        search: Former name of `recover`, as `recovered`.

    Raises:
        ValueError: If the arguments do not fit together.
    """

    def __init__(
        self,
        recover: bool = False,
        trials: TrialSettings | None = None,
        search: Literal["divergence", "recovered"] | None = None,
        **arguments: Unpack[JointPlanArguments],
    ) -> None:
        recovered = None if search is None else search == "recovered"
        recover = renamed("--method.search recovered", recovered, recover)
        if trials is not None and not recover:
            raise ValueError("Expected no trials, as splits are compared by their outputs. Add recover=True.")
        budget, planning = parted(arguments)
        super().__init__(JointPlanning(**planning), Budget(**budget))
        self.trials = (trials or TrialSettings()) if recover else None


def page_of(plan: Plan, runner: TrialRunner) -> str:
    """Return the page of a search by recoveries, Markdown: the accuracy of each split, and the cost of its trial.

    Args:
        plan: Plan of the search.
        runner: Runner of the trials.
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
