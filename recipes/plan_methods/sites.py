"""Method `sites` of `prunerecover plan`: the sites of a network, before a decision.

No plan is written. `<output>.md` lists removable sites, and refused ones with the reason; the terminal shows the first
lines.
"""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl

from prunerecover.callbacks.calibration.capture import capture_inputs
from prunerecover.callbacks.trials.nested import at_start_of_fit
from prunerecover.files.atomic import write_text
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.plan import Plan
from prunerecover.plan.units import Site
from prunerecover.recipes.plan_methods.base import AnyNetworkMethod, PlanTask, beside
from prunerecover.sites.find import find_sites
from prunerecover.sites.sites import Sites


class SitesTable(AnyNetworkMethod):
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

        def decide(trainer: pl.Trainer, module: pl.LightningModule) -> Sites[Site]:
            example = capture_inputs(trainer, module, task.target, 1, 0)[0]
            network = unwrap(get_module(module, task.target))
            return find_sites(network, example, self.kinds, self.ignore, include_strided=self.include_strided)

        self._found = at_start_of_fit(task.module, task.datamodule, decide, 0)
        return Plan()

    def write(self, plan: Plan, output: Path) -> None:
        """Write the tables."""
        write_text(beside(output, ".md"), self._found.to_markdown())

    def written(self, plan: Plan, output: Path) -> str:
        """Show the first sites, and name the file of all."""
        return f"{self._found}\nWrote {beside(output, '.md')}"
