"""Planning in width, on the network of a fit."""

from __future__ import annotations

import dataclasses
from typing import Any, Unpack

from torch import nn

from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.planning.base import Planning
from prunerecover.importance.u_score import labels_in
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.planning.plan_width import width_plan
from prunerecover.width.arguments import WidthArguments, WidthConfig
from prunerecover.width.feasible import check_feasible, check_names
from prunerecover.width.groups.experts import find_experts


class WidthPlanning(Planning):
    """Planning in width.

    Args:
        arguments: Arguments of `WidthConfig`.
    """

    def __init__(self, **arguments: Unpack[WidthArguments]) -> None:
        self.config: WidthConfig = WidthConfig(**arguments)

    @property
    def deciding(self) -> dict[str, Any]:
        """Arguments with influence on the removed units; newer arguments, unknown to old checkpoints, only if given."""
        newer = {"equal_layers": False, "round_to": None}
        unused = (name for name, default in newer.items() if getattr(self.config, name) is default)
        elsewhere = ("loss", "labels", "scores", "importance", *unused)
        given = self.config.importance if isinstance(self.config.importance, tuple) else (self.config.importance,)
        roles = dict(zip(("removal", "protection"), (None, *given)[-2:], strict=True))  # names in checkpoints
        others = {name: value for name, value in super().deciding.items() if name not in elsewhere}
        allocation = self.config.allocation or "per_cost"
        return roles | others | {"allocation": "tolerance" if allocation == "fair_pruner" else allocation}

    def check_budget(self, budget: Budget | None) -> None:
        """Raise an error unless a budget that fits the kinds of units, or a tolerance, is given."""
        self.config.for_budget(budget)

    def units(self, network: nn.Module, budget: Budget | None) -> dict[str, int]:
        """Return the number of experts; other units are found only with data, and counted in shares of cost."""
        return {"expert": sum(group.size for group in find_experts(network))}

    def check_feasible(self, surgery: Surgery, budget: Budget | None, whole: Budget | None) -> None:
        """Raise ValueError if a pattern in `ignore` matches no group, or a budget is out of reach."""
        if budget is not None and budget.latency is None:
            check_feasible(surgery.untouched, budget, self.config)
        elif self.config.ignore:
            check_names(surgery.untouched, whole, self.config)

    def config_of(self, budget: Budget | None) -> WidthConfig:
        """Return the arguments for a budget; labels are read from the batch of the training step."""
        own = self.config.labels or labels_in
        return dataclasses.replace(self.config, labels=lambda inputs: own(inputs.batch)).for_budget(budget)

    def decide(self, surgery: Surgery, budget: Budget | None) -> Plan:
        """Return the plan of `plan_width`, scored on the network's inputs in training."""
        return width_plan(surgery.session(surgery.scoring_loss(self.config.loss)), budget, self.config_of(budget))
