"""Frontier of a network, before a budget is picked: `prunerecover plan --method frontier`.

No plan is written. `<output>.md` tells what several shares of a cost would take, and `<output>.png` draws it.
"""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl

from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.trials.nested import at_start_of_fit
from prunerecover.display.markdown import table
from prunerecover.files.atomic import write_text
from prunerecover.frontiers.frontier import Frontier, frontier_table
from prunerecover.plan.evidence import Cost
from prunerecover.plan.plan import Plan
from prunerecover.recipes.plan_methods.base import AnyNetworkMethod, PlanTask, beside
from prunerecover.shared_budget.arguments import SharedBudgetConfig
from prunerecover.shared_budget.frontier import SHARES, frontier_of
from prunerecover.shared_budget.planner import SharedBudgetPlanner


class FrontierTable(AnyNetworkMethod):
    """Tell what several shares of a cost would take in depth and width (`frontier`).

    Args:
        cost: Cost that the shares are of, or several, of each of which as much goes.
        shares: Shares that would go, in rising order.
        kinds: Kinds of the units that may go; None: all that are usual.
        ignore: Shell patterns of units and groups that stay.
        seed: Seed of everything random.
    """

    def __init__(
        self,
        cost: Cost | list[Cost] = "macs",
        shares: list[float] | None = None,
        kinds: list[str] | None = None,
        ignore: list[str] | None = None,
        seed: int = 0,
    ) -> None:
        self.cost, self.shares = cost, tuple(shares or SHARES)
        self.config = SharedBudgetConfig(kinds=kinds, ignore=tuple(ignore or ()), seed=seed)

    def make(self, task: PlanTask) -> Plan:
        """Make the library and the frontier; nothing goes."""

        def decide(trainer: pl.Trainer, module: pl.LightningModule) -> Frontier:
            surgery = Surgery(trainer, module, task.target, task.calibration, self.config.seed)
            planner = SharedBudgetPlanner(surgery.session(surgery.loss), self.cost, self.config)
            return frontier_of(planner, self.shares)

        self._found = at_start_of_fit(task.module, task.datamodule, decide, self.config.seed)
        return Plan()

    def write(self, plan: Plan, output: Path) -> None:
        """Write the table and the picture."""
        header, rows = frontier_table(self._found.points)
        write_text(beside(output, ".md"), f"# Frontier\n\n{table(header, rows)}\n")
        self._found.plot(beside(output, ".png"))

    def written(self, plan: Plan, output: Path) -> str:
        """Show the table, and name the files."""
        return f"{self._found}\nWrote {beside(output, '.md')} and {beside(output, '.png')}"
