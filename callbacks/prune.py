"""Prune: remove units of depth and of width within one budget while a Trainer trains, tests or predicts."""

from __future__ import annotations

from typing import Unpack

from prunerecover.callbacks.arguments import SurgeryArguments, check_one
from prunerecover.callbacks.planning.joint import JointPlanning, PruningArguments
from prunerecover.callbacks.pruning import PruneCallback
from prunerecover.display.spelled_out import spelled_out
from prunerecover.plan.budget import Budget
from prunerecover.planning.arguments import PruningConfig
from prunerecover.quality import Quality


class JointPruneArguments(SurgeryArguments, PruningArguments, total=False):
    """Types of the keyword arguments of `Prune`."""


@spelled_out(PruneCallback, SurgeryArguments, PruningConfig, PruningArguments)
class Prune(PruneCallback):
    """Prune a network inside any LightningModule in depth and in width, and keep training it.

    An integer program chooses a variant for every site, in depth and width at once: see `plan_pruning`. As with
    `DepthPrune` and `WidthPrune`, the surgery happens at the start of an epoch, checkpoints record the surgery, and
    optimizers, schedulers, averaged copies and DDP follow. Right after the surgery, BatchNorm statistics are estimated
    again, and networks with mostly BatchNorm layers are reconstructed.

    Args:
        budget: Share of the MACs, the parameters or the measured latency; or Quality(...), the level of a validation
            metric down to which the network is pruned in steps (see `step`).

    Raises:
        ValueError: If the arguments do not fit together.
        TypeError: If an argument has the wrong type.
    """

    def __init__(
        self,
        budget: Budget | Quality | None = None,
        *,
        calibration: int = 256,
        **arguments: Unpack[JointPruneArguments],
    ) -> None:
        check_one({"budget": budget, "plan": arguments.get("plan")}, "Prune(Budget(latency=0.3))")
        super().__init__(JointPlanning, budget, calibration, **arguments)
