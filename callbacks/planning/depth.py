"""Planning in depth, on the network of a fit."""

from __future__ import annotations

import dataclasses
from typing import Any, Unpack

from torch import nn

from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.planning.base import Planning
from prunerecover.depth.arguments import DepthArguments, DepthConfig, budget_of
from prunerecover.depth.layers.family_units import known_by_parts
from prunerecover.depth.removable import check_feasible
from prunerecover.families.describe import is_supported
from prunerecover.model.arguments import check_patterns
from prunerecover.plan.budget import Budget
from prunerecover.plan.kinds import DEPTH_KINDS, FAMILY_KINDS
from prunerecover.plan.plan import Plan
from prunerecover.planning.plan_depth import depth_plan
from prunerecover.sites.find import find_units


class DepthPlanning(Planning):
    """Planning in depth.

    Args:
        arguments: Arguments of `DepthConfig`.
    """

    def __init__(self, **arguments: Unpack[DepthArguments]) -> None:
        self.config: DepthConfig = DepthConfig(**arguments)

    @property
    def deciding(self) -> dict[str, Any]:
        """Arguments with influence on the removed units; newer arguments, unknown to old checkpoints, only if given."""
        given = {name: value for name, value in super().deciding.items() if name != "scores"}
        return {name: value for name, value in given.items() if value or name not in ("kinds", "include_strided")}

    def check_budget(self, budget: Budget | None) -> None:
        """Raise TypeError if `budget` is no budget, and ValueError for units of width or several costs."""
        for kind in budget_of(budget, None).kinds(()):
            if kind not in DEPTH_KINDS:
                raise ValueError(
                    f"Expected kinds among {', '.join(DEPTH_KINDS)} for DepthPrune, but got '{kind}'. Channels, heads, "
                    "neurons and experts go with WidthPrune."
                )

    def units(self, network: nn.Module, budget: Budget | None) -> dict[str, int]:
        """Return the number of units of each kind; units found only with data are taken from the budget.

        Raises:
            ValueError: If a ratio is asked for of units found only with data.
        """
        kinds = () if budget is None else budget.kinds(())
        if known_by_parts(network, kinds):
            units = find_units(network, kinds=kinds or FAMILY_KINDS)
            return {kind: sum(unit.kind == kind for unit in units) for kind in FAMILY_KINDS}
        if budget is not None and budget.ratio is not None:
            raise ValueError(
                f"Expected remove=... or a share of a cost for {', '.join(kinds)} of {type(network).__name__}, whose "
                "units are known once data comes, but got ratio. Count them with find_units(network, batch, kinds)."
            )
        return dict(budget.remove or {}) if budget is not None else {}

    def check_network(self, network: nn.Module) -> None:
        """Raise ValueError if a pattern in `ignore` matches no unit of a supported family."""
        if self.config.ignore and is_supported(network):
            check_patterns(self.config.ignore, [unit.name for unit in find_units(network)], "units")

    def check_feasible(self, surgery: Surgery, budget: Budget | None, whole: Budget | None) -> None:
        """Raise ValueError if a budget exceeds the cost of all units, as far as known without scores."""
        known = budget is None or (budget.in_units and known_by_parts(surgery.network, budget.kinds(())))
        if budget is not None and not known and (budget.latency is None or not is_supported(surgery.network)):
            check_feasible(surgery.untouched, budget, self.config)

    def decide(self, surgery: Surgery, budget: Budget | None) -> Plan:
        """Return the plan of `plan_depth`, calibrated on the network's inputs in training."""
        assert budget is not None, "a plan is not decided about"
        config = self.config
        if config.reads_loss or config.loss is not None:
            config = dataclasses.replace(config, loss=surgery.loss_by(config.loss))
        return depth_plan(surgery.session(config.loss), budget, config)
