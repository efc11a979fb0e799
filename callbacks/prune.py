"""Prune: remove units of depth and of width within one budget while a Trainer trains, tests or predicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from prunerecover.boundary.search import Evaluate
from prunerecover.callbacks.arguments import check_alone, check_one
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.reconstructing import ReconstructingCallback
from prunerecover.callbacks.schedule import PruneSchedule
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.shared_budget.arguments import SharedBudgetConfig, check_share
from prunerecover.shared_budget.feasible import check_feasible, check_names
from prunerecover.shared_budget.plan_pruning import joint_plan
from prunerecover.width.groups.rounding import RoundTo


class Prune(ReconstructingCallback):
    """Prune a network inside any LightningModule in depth and in width, and keep training it.

    How much of the budget depth takes is tried: see `plan_pruning`. As with `DepthPrune` and `WidthPrune`, the surgery
    happens at the start of an epoch, checkpoints hold what was done, and optimizers, schedulers, averaged copies and
    DDP follow. Right after it BatchNorm statistics are estimated anew; networks that mostly normalise by them are
    reconstructed.

    Args:
        budget: A share of the MACs, the parameters or the measured latency.
        plan: A plan, or the path of one, which is read when a loop is set up, instead of deciding here. Also applied
            before test, validate and predict when no checkpoint says otherwise.
        target: Path of the network inside the LightningModule, "" for the module itself; default: the only one.
        loss: `loss(network, inputs) -> scalar`: call `network(*inputs.args, **inputs.kwargs)`; `inputs.batch` is what
            the training step was given. None: what the module's training step returns.
        kinds: See `plan_pruning`.
        equal_layers: See `plan_width`.
        round_to: See `plan_width`.
        schedule: When; also the epoch to start at, or a dict of `PruneSchedule`'s arguments. `every` and `times` divide
            the budget among several surgeries, each of which splits its part anew.
        calibration: Number of training samples to decide, reconstruct and recalibrate BatchNorm on.
        merge: See `DepthPrune`.
        ignore: Shell patterns of units and groups that stay.
        seed: Of calibration samples and everything random in planning.

    Raises:
        ValueError: If the arguments do not fit together.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        plan: str | Path | Plan | None = None,
        target: str | None = None,
        loss: Callable[[nn.Module, Any], Tensor] | None = None,
        kinds: str | Sequence[str] | None = None,
        equal_layers: bool = False,
        round_to: RoundTo | None = None,
        schedule: PruneSchedule | int | dict[str, Any] | None = None,
        calibration: int = 256,
        merge: Literal["copy", "at_surgery", "never"] = "copy",
        ignore: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        check_one({"budget": budget, "plan": plan}, "Prune(Budget(latency=0.3))")
        self.config = SharedBudgetConfig(
            loss=loss, kinds=kinds, equal_layers=equal_layers, round_to=round_to, ignore=ignore, seed=seed
        )
        if plan is None:
            check_share(budget)
        else:
            check_alone(Prune, self.planning)
        super().__init__(
            budget,
            plan=plan,
            target=target,
            schedule=schedule,
            calibration=calibration,
            merge=merge,
            seed=seed,
        )

    @property
    def planning(self) -> dict[str, Any]:
        """What decides which units go, by argument."""
        return {name: value for name, value in vars(self.config).items() if name != "seed"}

    def units(self, network: nn.Module) -> dict[str, int]:
        """Return none: the budget is in shares of cost."""
        return {}

    def check_feasible(self, surgery: Surgery, budget: Budget | None) -> None:
        """Raise ValueError if nothing can go, a pattern in `ignore` matches nothing, or a budget is too large."""
        assert self.budget is not None, "a plan is not checked"
        if budget is None:
            check_names(surgery.untouched, self.budget, self.config)
        else:
            check_feasible(surgery.untouched, budget, self.config)

    def decide(self, surgery: Surgery, budget: Budget | None, evaluate: Evaluate | None = None) -> Plan:
        """Return `plan_pruning`'s plan, decided on what the network gets while training.

        Args:
            surgery: Network and captured inputs.
            budget: How much of the network, as it is now, goes.
            evaluate: See `plan_pruning`; in a fit splits are compared by their outputs.
        """
        assert budget is not None, "a plan is not decided about"
        return joint_plan(surgery.session(self.config.loss or surgery.loss), budget, self.config, evaluate)
