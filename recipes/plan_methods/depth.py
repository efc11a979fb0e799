"""Methods `depth` and `graph` of `prunerecover plan`: removal of blocks, attentions, MLPs, activations and layers.

Intermediate results lie in `<plan>.search` until the plan is written, and an interrupted command goes on from there.
For `graph` a picture of the pruned network lies beside the plan (`<plan>.network.png`), with identities, narrowed and
removed layers marked.
"""

from __future__ import annotations

from typing import Any, Unpack

from matplotlib.figure import Figure

from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.planning.depth import DepthPlanning
from prunerecover.depth.arguments import DepthArguments, DepthConfig
from prunerecover.display.spelled_out import spelled_out
from prunerecover.display.style import save_figure
from prunerecover.graph.trace import trace_graph
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.recipes.plan_methods.base import BudgetArguments, PlanningMethod, SearchMethod, beside, parted


class DepthPlanArguments(BudgetArguments, DepthArguments, total=False):
    """Types of the arguments of `DepthPlan`."""


@spelled_out(DepthConfig, Budget)
class DepthPlan(SearchMethod):
    """Remove whole blocks, attentions, MLPs, activations or layers (`plan_depth`).

    Args:
        scores: File of scores by `--method sensitivity` for the same network: units are not ranked again.
        store: Folder of intermediate results; None: beside the plan until the plan is written.
    """

    def __init__(self, **arguments: Unpack[DepthPlanArguments]) -> None:
        budget, planning = parted(arguments)
        super().__init__(DepthPlanning(**planning), Budget(**budget))


@spelled_out(DepthPlan)
class GraphPlan(PlanningMethod):
    """Remove single linears and convolutions, and attentions, of any network (`plan_depth` on its computation graph).

    Args:
        kinds: Kinds of units for a share of a cost, among "layer", "attention", "mlp" and "block"; None: layers and
            attentions.
    """

    def __init__(self, **arguments: Unpack[DepthPlanArguments]) -> None:
        budget, planning = parted(arguments)
        planning["kinds"] = planning.get("kinds") or ("layer", "attention")
        super().__init__(DepthPlanning(**planning), Budget(**budget))
        self._picture: Figure | None = None

    def decide(self, surgery: Surgery) -> Plan:
        """Return the plan, and draw the network."""
        plan = super().decide(surgery)
        self._picture = trace_graph(surgery.network, surgery.untouched.example).plot(plan.edits)
        return plan

    def write(self, plan: Plan, output: Any) -> None:
        """Write the plan and the picture."""
        super().write(plan, output)
        if self._picture is not None:
            save_figure(self._picture, beside(output, ".network.png"))
