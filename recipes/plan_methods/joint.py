"""`prunerecover plan --method joint`: units of depth and of width go within one budget."""

from __future__ import annotations

from typing import Any

from prunerecover.callbacks.prune import Prune
from prunerecover.plan.plan import Plan
from prunerecover.recipes.plan_methods.base import AnyNetworkMethod, PlanTask, decided_at_start
from prunerecover.recipes.plan_methods.depth import budget_from


class JointPlan(AnyNetworkMethod):
    """Remove units of depth and of width within one budget (`plan_pruning`).

    Args:
        macs: Share of the MACs to remove. Give exactly one budget.
        params: Share of the parameters to remove.
        latency: Share of the measured latency to remove.
        kinds: Of the units that may go, in depth and width; None: all that are usual, and experts for `params`.
        equal_layers: Layers of one kind and size keep one number of units, which a config of transformers can say.
        round_to: What a group keeps is a multiple of this number: `8` for channels and neurons, or one per kind, such
            as `{"channel": 8, "neuron": 64}`. None: any.
        ignore: Shell patterns of units and groups that stay.
        seed: Of everything random.
    """

    def __init__(
        self,
        macs: float | None = None,
        params: float | None = None,
        latency: float | None = None,
        kinds: list[str] | None = None,
        equal_layers: bool = False,
        round_to: int | dict[str, int] | None = None,
        ignore: list[str] | None = None,
        seed: int = 0,
    ) -> None:
        self.planning: dict[str, Any] = {
            "budget": budget_from(macs=macs, params=params, latency=latency),
            "kinds": kinds,
            "equal_layers": equal_layers,
            "round_to": round_to,
            "ignore": tuple(ignore or ()),
            "seed": seed,
        }

    def make(self, task: PlanTask) -> Plan:
        """Return the plan that `Prune` would make at the start of a fit."""
        return decided_at_start(Prune(**self.planning, calibration=task.calibration), task)
