"""WidthPrune: remove channels, heads, neurons and experts while a Trainer trains, tests or predicts."""

from __future__ import annotations

from typing import Unpack

from prunerecover.callbacks.arguments import SurgeryArguments, check_one
from prunerecover.callbacks.planning.width import WidthPlanning
from prunerecover.callbacks.pruning import PruneCallback
from prunerecover.display.spelled_out import spelled_out
from prunerecover.plan.budget import Budget
from prunerecover.quality import Quality
from prunerecover.width.arguments import WidthArguments, WidthConfig


class WidthPruneArguments(SurgeryArguments, WidthArguments, total=False):
    """Types of the keyword arguments of `WidthPrune`."""


@spelled_out(PruneCallback, SurgeryArguments, WidthConfig)
class WidthPrune(PruneCallback):
    """Prune the width of a network inside any LightningModule, and keep training it.

    As with `DepthPrune`, the surgery happens at the start of an epoch, checkpoints record the surgery, and optimizers
    (with the moments of the remaining weights), schedulers, averaged copies and DDP follow. Right after the surgery,
    networks with BatchNorm are reconstructed, and their statistics are estimated again. Composes with `DepthPrune` on
    one module.

    Args:
        budget: Share of the MACs, the parameters or the measured latency, or a number or ratio of experts; or
            Quality(...), the level of a validation metric down to which the network is pruned in steps (see `step`).
        labels: Function `labels(batch) -> (N,)` from the batch of the training step to integer classes, for "u_score";
            None: the second element of a tuple, or `labels` of a mapping.

    Raises:
        ValueError: If the arguments do not fit together, also once the plan is read.
        TypeError: If an argument has the wrong type.
    """

    def __init__(
        self,
        budget: Budget | Quality | None = None,
        *,
        calibration: int = 256,
        **arguments: Unpack[WidthPruneArguments],
    ) -> None:
        given = {"budget": budget, "tolerance": arguments.get("tolerance"), "plan": arguments.get("plan")}
        check_one(given, "WidthPrune(Budget(macs=0.3))")
        asked = arguments.get("step") if isinstance(budget, Quality) else budget
        if isinstance(asked, Budget) and asked.in_units and asked.kinds(()) != ("expert",):
            raise ValueError(
                f"Expected WidthPrune's budget in a share of cost or in experts, but got {asked.to_dict()}. For "
                "example Budget(macs=0.3); blocks, attentions, MLPs and activations go with DepthPrune. For other "
                "units, make a plan with plan_width and pass WidthPrune(plan=...)."
            )
        super().__init__(WidthPlanning, budget, calibration, **arguments)
