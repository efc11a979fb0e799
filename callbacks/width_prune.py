"""WidthPrune: remove channels, heads, neurons and experts while a Trainer trains, tests or predicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from prunerecover.callbacks.arguments import check_alone, check_one
from prunerecover.callbacks.calibration.capture import labels_of_captured
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.reconstructing import ReconstructingCallback
from prunerecover.callbacks.schedule import PruneSchedule
from prunerecover.importance.context import Importance
from prunerecover.model.arguments import patterns_of
from prunerecover.plan.budget import Budget
from prunerecover.plan.kinds import WIDTH_KINDS, kinds_among
from prunerecover.plan.plan import Plan
from prunerecover.width.allocation.registry import AllocationRule
from prunerecover.width.arguments import WidthConfig, WidthReplace
from prunerecover.width.feasible import check_feasible, check_names
from prunerecover.width.groups.discovery import FOUND_KINDS
from prunerecover.width.groups.experts import find_experts
from prunerecover.width.groups.rounding import RoundTo
from prunerecover.width.plan_width import width_plan


class WidthPrune(ReconstructingCallback):
    """Prune the width of a network inside any LightningModule, and keep training it.

    As with `DepthPrune`, the surgery happens at the start of an epoch, checkpoints hold what was done, and optimizers
    (with the moments of what stays), schedulers, averaged copies and DDP follow. Right after it networks
    with BatchNorm are reconstructed, and their statistics are estimated anew. Composes with `DepthPrune` on one module.

    Args:
        budget: A share of the MACs, the parameters or the measured latency, or a number or ratio of experts.
        plan: A plan, or the path of one, which is read when a loop is set up, instead of deciding here. Also applied
            before test, validate and predict when no checkpoint says otherwise.
        target: Path of the network inside the LightningModule, "" for the module itself; default: the only one.
        allocation: See `plan_width`.
        importance: See `plan_width`.
        tolerance: See `plan_width`; with `allocation="tolerance"`, instead of a budget.
        loss: `loss(network, inputs) -> scalar`: call `network(*inputs.args, **inputs.kwargs)`; `inputs.batch` is what
            the training step was given. None: what the module's training step returns.
        labels: `labels(batch) -> (N,)` integer classes of what the training step was given, for "u_score"; None: the
            second element of a tuple, or `labels` of a mapping.
        kinds: Among "channel", "head", "neuron", "expert" and "hidden"; a budget in experts names its own.
        replace: See `plan_width`.
        equal_layers: See `plan_width`.
        round_to: See `plan_width`.
        reconstruct: Fit the weights that are left to what the network gave before, layer by layer, and keep that where
            it brings the output of samples that were held out nearer to what it was; see `reconstruct`.
            Takes a copy of the network and about two passes over the calibration samples per layer. None: networks that
            mostly normalise by BatchNorm, which gain by it (a vision transformer lost). Not before sharding.
        schedule: When; also the epoch to start at, or a dict of `PruneSchedule`'s arguments. `every` and `times` divide
            the budget among several surgeries, scored anew each time.
        calibration: Number of training samples to score, reconstruct and recalibrate BatchNorm on.
        merge: See `DepthPrune`.
        ignore: Shell patterns of groups that stay.
        seed: Of calibration samples and everything random in planning.

    Raises:
        ValueError: If the arguments do not fit together, also once the plan is read.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        plan: str | Path | Plan | None = None,
        target: str | None = None,
        allocation: AllocationRule | str = "per_cost",
        importance: Importance | str | Sequence[Importance | str] | None = None,
        tolerance: float | None = None,
        loss: Callable[[nn.Module, Any], Tensor] | None = None,
        labels: Callable[[Any], Tensor] | None = None,
        kinds: Sequence[str] = FOUND_KINDS,
        replace: WidthReplace = "calibrated",
        equal_layers: bool = False,
        round_to: RoundTo | None = None,
        reconstruct: bool | None = None,
        schedule: PruneSchedule | int | dict[str, Any] | None = None,
        calibration: int = 256,
        merge: Literal["copy", "at_surgery", "never"] = "copy",
        ignore: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        check_one({"budget": budget, "tolerance": tolerance, "plan": plan}, "WidthPrune(Budget(macs=0.3))")
        planning: dict[str, Any] = {
            "allocation": allocation,
            "importance": importance,
            "tolerance": tolerance,
            "kinds": kinds_among(kinds, WIDTH_KINDS),
            "replace": replace,
            "equal_layers": equal_layers,
            "round_to": round_to,
            "ignore": patterns_of(ignore),
        }
        if plan is not None:
            check_alone(WidthPrune, {**planning, "loss": loss, "labels": labels})
        self.config = WidthConfig(**planning, loss=loss, labels=labels, seed=seed)
        if plan is None:
            _check_units(budget)
            self.config.check_budget(budget, self.config.kinds)
        super().__init__(
            budget,
            plan=plan,
            target=target,
            schedule=schedule,
            calibration=calibration,
            merge=merge,
            seed=seed,
            reconstruct=reconstruct,
        )

    @property
    def planning(self) -> dict[str, Any]:
        """What decides which units go, by argument; runs of before there were some of them go on without."""
        newer = {"equal_layers": False, "round_to": None}
        unused = (name for name, default in newer.items() if getattr(self.config, name) is default)
        elsewhere = ("loss", "labels", "rounds", "scores", "seed", "importance", *unused)
        given = self.config.importance if isinstance(self.config.importance, tuple) else (self.config.importance,)
        roles = dict(zip(("removal", "protection"), (None, *given)[-2:], strict=True))  # as checkpoints have them
        return roles | {name: value for name, value in vars(self.config).items() if name not in elsewhere}

    def units(self, network: nn.Module) -> dict[str, int]:
        """Return how many experts there are; other units are known once data comes, and counted in shares of cost."""
        return {"expert": sum(group.size for group in find_experts(network))}

    def check_feasible(self, surgery: Surgery, budget: Budget | None) -> None:
        """Raise ValueError if a pattern in `ignore` matches nothing, or a budget is more than can go."""
        if budget is not None and budget.latency is None:
            check_feasible(surgery.untouched, budget, self.config)
        elif self.config.ignore:
            check_names(surgery.untouched, self.budget, self.config)

    def decide(self, surgery: Surgery, budget: Budget | None) -> Plan:
        """Return `plan_width`'s plan, scored on what the network gets while training.

        Args:
            surgery: Network and captured inputs.
            budget: How much of the network, as it is now, goes; None: what the tolerance says.
        """
        config = dataclasses.replace(self.config, labels=labels_of_captured(self.config.labels)).for_budget(budget)
        return width_plan(surgery.session(config.loss or surgery.loss), budget, config)


def _check_units(budget: Budget | None) -> None:
    if isinstance(budget, Budget) and budget.in_units and budget.kinds(()) != ("expert",):
        raise ValueError(
            f"Expected WidthPrune's budget in a share of cost or in experts, but got {budget.to_dict()}. For example "
            "Budget(macs=0.3); blocks, attentions, MLPs and activations go with DepthPrune. For other units, make a "
            "plan with plan_width and pass WidthPrune(plan=...)."
        )
