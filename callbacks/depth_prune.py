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
    """Types of further arguments of `DepthPrune`."""


@spelled_out(PruneCallback, SurgeryArguments, DepthConfig)
class DepthPrune(PruneCallback):
    """Prune the depth of a network inside any LightningModule, and keep training it.

    The surgery happens at the start of an epoch. Checkpoints hold what was done, so resuming, `test(ckpt_path="best")`
    and weights-only files work; optimizers, schedulers, averaged copies and DDP follow. Several of these on one module
    compose. In a second fit the same object goes on where it was; a new one starts its schedule anew.

    Args:
        budget: How much goes, or Quality(...), a metric of validation until whose fall the network is pruned in steps
            (see `step`); exactly one of `budget`, `remove` and `plan`.
        remove: Units per kind, such as {"attention": 2, "activation": 6}.
        store: Folder of what planning has found: a fit that is killed while it plans, and begun again, goes on there;
            see `plan_depth`, also for when to take another one. It is not deleted.

    Raises:
        ValueError: If the arguments do not fit together.
        TypeError: If one is of another type.
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
