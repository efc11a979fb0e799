"""`prunerecover plan --method graph`: single layers and attentions of any network go, as its computation graph shows.

Beside the plan lies a picture of the pruned network (`<plan>.network.png`): which layers are identities, narrowed, or
gone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import lightning.pytorch as pl
from matplotlib.figure import Figure

from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.depth_prune import DepthPrune
from prunerecover.callbacks.trials.nested import at_start_of_fit
from prunerecover.display.style import save_figure
from prunerecover.graph.trace import trace_graph
from prunerecover.importance.context import Importance
from prunerecover.plan.plan import Plan
from prunerecover.recipes.plan_methods.base import AnyNetworkMethod, PlanTask, beside
from prunerecover.recipes.plan_methods.depth import budget_from


class GraphPlan(AnyNetworkMethod):
    """Remove single linears and convolutions, and attentions, of any network (`plan_depth` on its computation graph).

    Args:
        remove: Units per kind, for example `{"layer": 12}`. Give one budget.
        macs: Share of the MACs to remove.
        params: Share of the parameters to remove.
        latency: Share of the measured latency to remove.
        kinds: For a share: among `layer`, `attention`, `mlp` and `block`.
        importance: What ranks the units: `output_divergence`, `cross_entropy`, `taylor`, `squared_taylor`, `r_score`,
            `fisher`, `magnitude`, `l2_norm`, `block_output_angle`, `random`, of whole blocks `block_influence`,
            `angular_distance` and `gate_gradient`, or the import path of a callable.
        search: `joint`, `greedy`, `exact`, `one_shot`, `two_to_one` or `rounds`; None takes the best that is possible.
        include_strided: Whether layers that change spatial dimensions may go, too.
        ignore: Shell patterns of units that stay.
        scores: File of scores that `--method sensitivity` wrote for the same network: units are not ranked again.
        seed: Of everything random.
    """

    def __init__(
        self,
        remove: dict[str, int] | None = None,
        macs: float | None = None,
        params: float | None = None,
        latency: float | None = None,
        kinds: list[str] | None = None,
        importance: Importance | str = "output_divergence",
        search: str | None = None,
        include_strided: bool = False,
        ignore: list[str] | None = None,
        scores: str | None = None,
        seed: int = 0,
    ) -> None:
        self.planning: dict[str, Any] = {
            "budget": budget_from(remove=remove, macs=macs, params=params, latency=latency),
            "kinds": tuple(kinds or ("layer", "attention")),
            "importance": importance,
            "search": search,
            "include_strided": include_strided,
            "ignore": tuple(ignore or ()),
            "seed": seed,
        }
        self.scores = scores
        self._picture: Figure | None = None

    def make(self, task: PlanTask) -> Plan:
        """Return the plan that `DepthPrune` would make at the start of a fit."""
        prune = DepthPrune(**self.planning, calibration=task.calibration)
        prune.config = dataclasses.replace(prune.config, scores=self.scores)

        def decide(trainer: pl.Trainer, module: pl.LightningModule) -> Plan:
            surgery = Surgery(trainer, module, task.target, prune.calibration, prune.seed)
            plan = prune.decide(surgery, prune.budget)
            self._picture = trace_graph(surgery.network, surgery.untouched.example).plot(plan.edits)
            return plan

        return at_start_of_fit(task.module, task.datamodule, decide, prune.seed)

    def write(self, plan: Plan, output: Any) -> None:
        """Write the plan and the picture."""
        plan.save(output)
        if self._picture is not None:
            save_figure(self._picture, beside(output, ".network.png"))
