"""Method `sites` of `prunerecover plan`: the sites of a network, before a decision.

No plan is written. `<output>.md` lists removable sites, and refused ones with the reason; the terminal shows the first
lines.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.files.atomic import write_text
from prunerecover.plan.plan import Plan
from prunerecover.plan.units import Site
from prunerecover.recipes.plan_methods.base import PlanTask, TableMethod, beside
from prunerecover.sites.find import find_sites
from prunerecover.sites.sites import Sites


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

    def write(self, plan: Plan, output: Path) -> None:
        """Write the tables."""
        write_text(beside(output, ".md"), self.found.to_markdown())

    def written(self, plan: Plan, output: Path) -> str:
        """Show the first sites, and name the file of all."""
        return f"{self.found}\nWrote {beside(output, '.md')}"
