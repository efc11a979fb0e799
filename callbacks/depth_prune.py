"""DepthPrune: remove blocks, attentions, MLPs, activations or layers while a Trainer trains, tests or predicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from prunerecover.callbacks.arguments import SurgeryArguments, check_one
from prunerecover.callbacks.planning.depth import DepthPlanning
from prunerecover.callbacks.pruning import PruneCallback
from prunerecover.depth.arguments import DepthArguments, DepthConfig
from prunerecover.display.spelled_out import spelled_out
from prunerecover.plan.budget import Budget
from prunerecover.quality import Quality


class DepthPruneArguments(SurgeryArguments, DepthArguments, total=False):
    """Types of the keyword arguments of `DepthPrune`."""


@spelled_out(PruneCallback, SurgeryArguments, DepthConfig)
class DepthPrune(PruneCallback):
    """Prune the depth of a network inside any LightningModule, and keep training it.

    The surgery happens at the start of an epoch. Checkpoints record the surgery: resuming, `test(ckpt_path="best")` and
    weights-only files work. Optimizers, schedulers, averaged copies and DDP follow. Several pruning callbacks on one
    module compose. In a second fit, the same object continues its schedule; a new object starts a new schedule.

    Args:
        budget: Amount to remove, or Quality(...), the level of a validation metric down to which the network is pruned
            in steps (see `step`); exactly one of `budget`, `remove` and `plan`.
        remove: Number of units per kind, e.g. {"attention": 2, "activation": 6}.
        store: Folder for intermediate results of planning: a fit killed while planning resumes planning from the
            folder; see `plan_depth`, also for when to take another folder. The folder is never deleted.

    Raises:
        ValueError: If the arguments do not fit together.
        TypeError: If an argument has the wrong type.
    """

    def __init__(
        self,
        budget: Budget | Quality | None = None,
        *,
        remove: Mapping[str, int] | None = None,
        calibration: int = 192,
        **arguments: Unpack[DepthPruneArguments],
    ) -> None:
        given = {"budget": budget, "remove": remove, "plan": arguments.get("plan")}
        check_one(given, 'DepthPrune(remove={"attention": 2})')
        super().__init__(DepthPlanning, budget if remove is None else Budget(remove=remove), calibration, **arguments)
