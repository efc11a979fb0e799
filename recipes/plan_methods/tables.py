"""Methods `sites`, `sensitivity` and `frontier` of `prunerecover plan`: tables of a network, before a decision.

No plan is written. For `sites`, `<output>.md` lists removable sites, and refused ones with the reason; the terminal
shows the first lines. For `sensitivity`, `<output>.md` holds costs and importances of each unit and group, beside a
picture, and `<output>.scores.safetensors` the scores for later plans of the same network: `--method depth
--method.scores ...`, and the methods of width alike. For `frontier`, `<output>.md` holds the divergence at several
shares of a cost, beside a picture.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from pathlib import Path
from typing import Any

from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.cost.units.cost_names import CostName
from prunerecover.display.markdown import table
from prunerecover.display.style import save_figure
from prunerecover.files.atomic import write_text
from prunerecover.frontiers.frontier import Frontier, frontier_table
from prunerecover.plan.plan import Plan
from prunerecover.plan.units import Site
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.frontier import SHARES, frontier_of
from prunerecover.planning.planner import Planner
from prunerecover.recipes.plan_methods.base import AnyNetworkMethod, PlanTask, beside, search_store, stored
from prunerecover.sensitivity_table.sensitivity import Sensitivity, sensitivity_in
from prunerecover.sites.find import find_sites
from prunerecover.sites.sites import Sites
from prunerecover.store.search_store import delete_results


class TableMethod(AnyNetworkMethod):
    """Method that shows a table of a network, and writes no plan.

    Attributes:
        seed: Seed of all random draws.
    """

    seed = 0

    @abstractmethod
    def look(self, surgery: Surgery, output: Path) -> Any:
        """Return the table, which `write` and `written` find as `self.found`.

        Args:
            surgery: Network and captured inputs.
            output: File of a plan; further files of the method go beside it.
        """

    def make(self, task: PlanTask) -> Plan:
        """Look at the network; nothing is removed."""
        self.found = task.at_start(lambda surgery: self.look(surgery, task.output), self.seed)
        return Plan()

    def write(self, plan: Plan, output: Path) -> None:
        """Write the table."""
        write_text(beside(output, ".md"), self.found.to_markdown())


class SitesTable(TableMethod):
    """List units of depth and groups of width with their sizes, and refusals with reasons (`find_sites`).

    Args:
        kinds: Kinds among `block`, `attention`, `mlp`, `activation` and `layer`, `channel`, `head`, `neuron`, `expert`
            and `hidden`; None: the default kinds of plans.
        ignore: Shell patterns of sites that stay.
        include_strided: Whether layers that change spatial dimensions are listed, too.
    """

    def __init__(
        self, kinds: list[str] | None = None, ignore: list[str] | None = None, include_strided: bool = False
    ) -> None:
        self.kinds, self.ignore, self.include_strided = kinds, tuple(ignore or ()), include_strided

    def make(self, task: PlanTask) -> Plan:
        """Find sites on a single sample; nothing is removed."""
        return super().make(dataclasses.replace(task, calibration=1))

    def look(self, surgery: Surgery, output: Path) -> Sites[Site]:
        """Return the sites."""
        return find_sites(
            surgery.network, surgery.inputs[0], self.kinds, self.ignore, include_strided=self.include_strided
        )

    def written(self, plan: Plan, output: Path) -> str:
        """Show the first sites, and name the file of all."""
        return f"{self.found}\nWrote {beside(output, '.md')}"


class SensitivityTable(TableMethod):
    """Score every unit of depth and every group of width, and measure their savings (`sensitivity`).

    Args:
        kinds: Kinds among `block`, `attention`, `mlp`, `activation` and `layer`, `channel`, `head`, `neuron` and
            `expert`; None: the kinds of the methods of depth and width.
        importance: Importance of channels, heads, neurons and experts.
        replace: Replacement of units of depth: `calibrated`, `zero` or `identity`.
        ignore: Shell patterns of units and groups that stay.
        seed: Seed of all random draws.
    """

    def __init__(
        self,
        kinds: list[str] | None = None,
        importance: str = "gate_taylor",
        replace: str = "calibrated",
        ignore: list[str] | None = None,
        seed: int = 0,
    ) -> None:
        self.kinds, self.importance, self.replace = kinds, importance, replace
        self.ignore, self.seed = tuple(ignore or ()), seed

    def look(self, surgery: Surgery, output: Path) -> Sensitivity:
        """Return the scores."""
        return sensitivity_in(
            surgery.session(surgery.loss),
            kinds=self.kinds,
            importance=self.importance,
            replace=self.replace,
            ignore=self.ignore,
        )

    def write(self, plan: Plan, output: Path) -> None:
        """Write the table, the picture and the scores."""
        super().write(plan, output)
        save_figure(self.found.plot(), beside(output, ".png"))
        self.found.save(beside(output, ".scores.safetensors"))

    def written(self, plan: Plan, output: Path) -> str:
        """Name the files."""
        return f"Wrote {beside(output, '.md')}, its picture, and the scores for --method.scores"


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
