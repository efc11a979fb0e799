"""WidthPrune: remove channels, heads, neurons and experts while a Trainer trains, tests or predicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from prunerecover.budget import Budget
from prunerecover.callbacks.arguments import check_alone
from prunerecover.callbacks.capture import capture_inputs
from prunerecover.callbacks.pruning import PruningCallback
from prunerecover.callbacks.schedule import PruneSchedule
from prunerecover.callbacks.target import find_network
from prunerecover.callbacks.width_inputs import width_inputs
from prunerecover.plan import Plan
from prunerecover.structure import get_module, unwrap
from prunerecover.width.batchnorm import STATISTICS, recalibrate_batchnorm
from prunerecover.width.discovery import FOUND_KINDS
from prunerecover.width.experts import find_experts
from prunerecover.width.planning import Allocation, Replacement, check_arguments, plan_width


class WidthPrune(PruningCallback):
    """Prune the width of a network inside any LightningModule, and keep training it.

    As with `DepthPrune`, the surgery happens at the start of an epoch, checkpoints hold what was done, and optimizers
    (with the moments of what stays), schedulers, averaged copies and DDP follow. BatchNorm statistics are estimated
    anew right after it. Composes with `DepthPrune` on one module.

    Args:
        budget: A share of the MACs, the parameters or the measured latency, or a number or ratio of experts.
        plan: A plan, or the path of one, which is read when a loop is set up, instead of deciding here. Also applied
            before test, validate and predict when no checkpoint says otherwise.
        target: Path of the network inside the LightningModule, "" for the module itself; default: the only one.
        allocation: See `plan_width`.
        removal: See `plan_width`.
        protection: See `plan_width`.
        tolerance: See `plan_width`; with `allocation="tolerance"`, instead of a budget.
        loss: `loss(network, inputs) -> scalar`: call `network(*inputs.args, **inputs.kwargs)`; `inputs.batch` is what
            the training step was given. None: what the module's training step returns.
        labels: `labels(batch) -> (N,)` integer classes of what the training step was given, for "u_score"; None: the
            second element of a tuple, or `labels` of a mapping.
        kinds: Among "channel", "head", "neuron" and "expert"; a budget in experts names its own.
        replace: See `plan_width`.
        schedule: When; also as a dict of `PruneSchedule`'s arguments. `every` and `times` divide the budget among
            several surgeries, scored anew each time.
        calibration: Number of training samples to score and to recalibrate BatchNorm on.
        merge: See `DepthPrune`.
        ignore: Shell patterns of groups that stay.
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
        allocation: Allocation = "per_cost",
        removal: str | None = None,
        protection: str | None = None,
        tolerance: float | None = None,
        loss: Callable[[nn.Module, Any], Tensor] | None = None,
        labels: Callable[[Any], Tensor] | None = None,
        kinds: Sequence[str] = FOUND_KINDS,
        replace: Replacement = "calibrated",
        schedule: PruneSchedule | dict[str, Any] | None = None,
        calibration: int = 256,
        merge: Literal["copy", "at_surgery", "never"] = "copy",
        ignore: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        if sum(argument is not None for argument in (budget, tolerance, plan)) != 1:
            raise ValueError("Expected exactly one of budget, tolerance and plan, e.g. WidthPrune(Budget(macs=0.3)).")
        kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        planning: dict[str, Any] = {
            "allocation": allocation,
            "removal": removal,
            "protection": protection,
            "tolerance": tolerance,
            "kinds": kinds,
            "replace": replace,
            "ignore": (ignore,) if isinstance(ignore, str) else tuple(ignore),
        }
        if plan is None:
            check_arguments(budget, allocation, removal, protection, tolerance, replace, kinds)
            _check_units(budget)
        else:
            check_alone(WidthPrune, {**planning, "loss": loss, "labels": labels})
        super().__init__(
            budget,
            plan=plan,
            target=target,
            schedule=schedule,
            calibration=calibration,
            merge=merge,
            seed=seed,
        )
        self.loss, self.labels = loss, labels
        self.planning = planning

    def find(self, pl_module: pl.LightningModule) -> str:
        """Return the target, or the only network."""
        return find_network(pl_module, self.target)

    def units(self, network: nn.Module) -> dict[str, int]:
        """Return how many experts there are; other units are known once data comes, and counted in shares of cost."""
        return {"expert": sum(group.size for group in find_experts(network))}

    def decide(self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str, budget: Budget | None) -> Plan:
        """Return `plan_width`'s plan, scored on what the network gets while training."""
        network = unwrap(get_module(pl_module, target))
        inputs = width_inputs(trainer, pl_module, target, self.calibration, self.seed, self.loss, self.labels)
        return plan_width(network, budget, **vars(inputs), seed=self.seed, **self.planning)

    def after_surgery(self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str) -> None:
        """Estimate BatchNorm statistics anew; all ranks take those of the first."""
        network = unwrap(get_module(pl_module, target))
        if not _has_statistics(network):
            return
        inputs = capture_inputs(trainer, pl_module, target, self.calibration, self.seed)
        recalibrate_batchnorm(network, [batch for batch in inputs if batch.n_samples > 1] or inputs)
        buffers = {name: b for name, b in network.named_buffers() if name.rpartition(".")[2] in STATISTICS}
        for name, value in trainer.strategy.broadcast({name: b.cpu() for name, b in buffers.items()}).items():
            buffers[name].copy_(value)

    def after_evaluation_surgery(self, network: nn.Module) -> None:
        """Say that nothing recalibrates BatchNorm without training data."""
        if _has_statistics(network):
            rank_zero_warn(
                "The plan was applied without recalibrating BatchNorm, whose statistics are still those of the dense "
                "network: scores will be low. Fit first, or call recalibrate_batchnorm(network, batches)."
            )


def _check_units(budget: Budget | None) -> None:
    if budget is not None and budget.in_units and budget.kinds(()) != ("expert",):
        raise ValueError(
            f"Expected WidthPrune's budget in a share of cost or in experts, but got {budget.to_dict()}. For example "
            "Budget(macs=0.3); for other units, make a plan with plan_width and pass WidthPrune(plan=...)."
        )


def _has_statistics(network: nn.Module) -> bool:
    return any(isinstance(m, _BatchNorm) and m.running_mean is not None for m in network.modules())
