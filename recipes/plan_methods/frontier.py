"""Method `frontier` of `prunerecover plan`: the frontier of a network, before a budget is picked.

No plan is written. `<output>.md` holds the divergence at several shares of a cost, and `<output>.png` a picture.
"""

from __future__ import annotations

from pathlib import Path

from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.cost.units.cost_names import CostName
from prunerecover.display.markdown import table
from prunerecover.files.atomic import write_text
from prunerecover.frontiers.frontier import Frontier, frontier_table
from prunerecover.plan.plan import Plan
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.frontier import SHARES, frontier_of
from prunerecover.planning.planner import Planner
from prunerecover.recipes.plan_methods.base import TableMethod, beside, search_store, stored
from prunerecover.store.search_store import delete_results


class FrontierTable(TableMethod):
    """Predict the effect of several shares of a cost in depth and width (`frontier`).

    Args:
        cost: Cost to save, or several costs, each reduced by the same share.
        shares: Shares to remove, in rising order.
        kinds: Kinds of the removable units; None: all usual kinds.
        ignore: Shell patterns of units and groups that stay.
        seed: Seed of all random draws.
        store: Folder of the results of the search; None: beside the table, until that is written.
    """

    def __init__(
        self,
        cost: CostName | list[CostName] = "macs",
        shares: list[float] | None = None,
        kinds: list[str] | None = None,
        ignore: list[str] | None = None,
        seed: int = 0,
        store: str | None = None,
    ) -> None:
        self.cost, self.shares = cost, tuple(shares or SHARES)
        self.config, self.seed = PruningConfig(kinds=kinds, ignore=tuple(ignore or ()), seed=seed, store=store), seed

    def look(self, surgery: Surgery, output: Path) -> Frontier:
        """Return the frontier."""
        planner = Planner(surgery.session(surgery.loss), self.cost, stored(self.config, output))
        return frontier_of(planner, self.shares)

    def write(self, plan: Plan, output: Path) -> None:
        """Write the table and the picture."""
        header, rows = frontier_table(self.found.points)
        write_text(beside(output, ".md"), f"# Frontier\n\n{table(header, rows)}\n")
        self.found.plot(beside(output, ".png"))
        delete_results(search_store(output))

    def written(self, plan: Plan, output: Path) -> str:
        """Show the table, and name the files."""
        return f"{self.found}\nWrote {beside(output, '.md')} and {beside(output, '.png')}"
