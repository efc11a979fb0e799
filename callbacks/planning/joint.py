"""Planning in depth and width for one budget, on the network of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from prunerecover.boundary.search import Evaluate
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.planning.base import Planning
from prunerecover.importance.measuring.losses import Loss
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.planning.arguments import PruningConfig, check_costs
from prunerecover.planning.feasible import check_feasible, check_names
from prunerecover.planning.plan_pruning import joint_plan
from prunerecover.planning.score import Score
from prunerecover.width.groups.rounding import RoundTo


class PruningArguments(TypedDict, total=False):
    """Types of the arguments of `PruningConfig`; see `plan_pruning` for details.

    Args:
        loss: Function `loss(network, batch) -> scalar`, as in the plan functions; in a fit, `batch` is the batch of the
            training step. None: the loss of the training step.
        kinds: Kinds of the units that may go, in depth and width; None: the usual kinds, and experts for a share of the
            parameters.
        equal_layers: Whether layers of one kind and size keep an equal number of units, as far as a config of
            transformers can express sizes.
        round_to: Divisor of the number of kept units in a group: 8 for channels and neurons, or a divisor per kind,
            e.g. {"channel": 8, "neuron": 64}. None: no rounding; for a latency, 8 is tried, too.
        ignore: Shell patterns of units and groups that stay.
        score: Metric `score(network) -> float` of your own, larger is better, for the choice among at most 4 plans of
            nearly the same divergence; see `plan_pruning`. None: the least divergence.
        seed: Seed of the samples and of all random numbers in planning.
        store: Folder for intermediate results of planning: a fit killed while planning resumes planning from the
            folder; see `plan_pruning`. None: no results are kept.
    """

    loss: Loss | None
    kinds: str | Sequence[str] | None
    equal_layers: bool
    round_to: RoundTo | None
    ignore: Sequence[str]
    score: Score | None
    seed: int
    store: str | Path | None


class JointPlanning(Planning):
    """Planning in depth and width together.

    Args:
        arguments: Arguments of `PruningConfig`.

    Attributes:
        evaluate: Function that recovers pruned networks for a short while, see `plan_pruning`; None: networks are
            compared by their outputs.
    """

    evaluate: Evaluate | None = None

    def __init__(self, **arguments: Unpack[PruningArguments]) -> None:
        self.config: PruningConfig = PruningConfig(**arguments)

    @property
    def deciding(self) -> dict[str, Any]:
        """Arguments with influence on the removed units; a score, unknown to old checkpoints, only if given."""
        return {name: value for name, value in super().deciding.items() if name != "score" or value is not None}

    def check_budget(self, budget: Budget | None) -> None:
        """Raise an error unless the budget is in one or several costs."""
        check_costs(budget)

    def check_feasible(self, surgery: Surgery, budget: Budget | None, whole: Budget | None) -> None:
        """Raise ValueError if no unit can go, a pattern in `ignore` matches no unit, or a budget is too large."""
        assert whole is not None, "a plan is not checked"
        if budget is None:
            check_names(surgery.untouched, whole, self.config)
        else:
            check_feasible(surgery.untouched, budget, self.config)

    def decide(self, surgery: Surgery, budget: Budget | None) -> Plan:
        """Return the plan of `plan_pruning`, made on the network's inputs in training."""
        assert budget is not None, "a plan is not decided about"
        return joint_plan(surgery.session(surgery.scoring_loss(self.config.loss)), budget, self.config, self.evaluate)
