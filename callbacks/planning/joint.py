"""Planning in depth and width for one budget, on the network of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from prunerecover.boundary.search import Evaluate
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.planning.base import Planning
from prunerecover.importance.measuring.losses import Loss
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.planning.arguments import PruningConfig, check_costs
from prunerecover.planning.feasible import check_feasible, check_names
from prunerecover.planning.plan_pruning import joint_plan
from prunerecover.width.groups.rounding import RoundTo


class PruningArguments(TypedDict, total=False):
    """Types of the arguments of `PruningConfig`, as `plan_pruning` describes them at length.

    Args:
        loss: `loss(network, batch) -> scalar`. In a fit `batch` is the inputs of a call, `network(*batch.args,
            **batch.kwargs)`, and `batch.batch` what the training step was given; None: what the training step returns.
        kinds: Kinds of the units that may go, in depth and width; None: all that are usual, and experts for a share of
            the parameters.
        equal_layers: Layers of one kind and size keep one number of units, which a config of transformers can say.
        round_to: What a group keeps is a multiple of this number: 8 for channels and neurons, or one per kind, such as
            {"channel": 8, "neuron": 64}. None: any; for a latency 8 is tried, too.
        ignore: Shell patterns of units and groups that stay.
        seed: Seed of the samples and of everything random in planning.
        store: Folder of what planning has found: a fit that is killed while it plans, and begun again, goes on there;
            see `plan_pruning`. None: nothing is kept.
    """

    loss: Loss | None
    kinds: str | Sequence[str] | None
    equal_layers: bool
    round_to: RoundTo | None
    ignore: Sequence[str]
    seed: int
    store: str | Path | None


class JointPlanning(Planning):
    """Planning in depth and width together.

    Args:
        arguments: Arguments of `PruningConfig`.

    Attributes:
        evaluate: What recovers splits for a short while, see `plan_pruning`; None: they are compared by their outputs.
    """

    evaluate: Evaluate | None = None

    def __init__(self, **arguments: Unpack[PruningArguments]) -> None:
        self.config: PruningConfig = PruningConfig(**arguments)

    def check_budget(self, budget: Budget | None) -> None:
        """Raise unless it is of one cost or of several."""
        check_costs(budget)

    def check_feasible(self, surgery: Surgery, budget: Budget | None, whole: Budget | None) -> None:
        """Raise ValueError if nothing can go, a pattern in `ignore` matches nothing, or a budget is too large."""
        assert whole is not None, "a plan is not checked"
        if budget is None:
            check_names(surgery.untouched, whole, self.config)
        else:
            check_feasible(surgery.untouched, budget, self.config)

    def decide(self, surgery: Surgery, budget: Budget | None) -> Plan:
        """Return `plan_pruning`'s plan, decided on what the network gets while training."""
        assert budget is not None, "a plan is not decided about"
        return joint_plan(surgery.session(self.config.loss or surgery.loss), budget, self.config, self.evaluate)
