"""Plan which blocks, attentions, MLPs and activations to remove, and what they leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from prunerecover.depth.arguments import DepthConfig, budget_of
from prunerecover.depth.planner import DepthPlanner
from prunerecover.display.progress import progress
from prunerecover.importance.context import Loss
from prunerecover.importance.registry import Importance
from prunerecover.model.batches import Batches
from prunerecover.plan.budget import Budget
from prunerecover.plan.kinds import DEPTH_KINDS
from prunerecover.plan.plan import Plan


def plan_depth(
    model: nn.Module,
    budget: Budget | None = None,
    *,
    remove: Mapping[str, int] | None = None,
    batches: Batches,
    importance: str | Importance = "output_divergence",
    loss: Loss | None = None,
    replace: str = "calibrated",
    search: str | None = None,
    ignore: Sequence[str] = (),
    seed: int = 0,
) -> Plan:
    """Decide what to remove within a budget; the model is bit-identical afterwards.

    Args:
        model: A supported model (see `find_units`), wrapped or not.
        budget: How much goes. A share of the MACs, parameters or latency is that of the model once it is merged: it is
            met, and exceeded by no more than about the smallest unit.
        remove: Short for `Budget(remove=...)`: units per kind.
        batches: Calibration batches: tensors, tuples whose first element is the input, or mappings. No labels are read,
            except by importances that take a `loss`. Every 4th sample is held out to judge what was fitted to the
            others.
        importance: What ranks units within their kind: "output_divergence" (the default), "gate_gradient", "taylor",
            "magnitude", "angular_distance", "block_influence", "random", one that `register_importance` has named, or a
            callable `(context) -> {unit name: importance}`; see `importance.context.DepthContext`.
        loss: `loss(model, batch) -> scalar`, for "gate_gradient" and "taylor".
        replace: "calibrated" fits what is left and picks it by its effect on the output; "zero" and "identity" are
            there by name. Whole blocks always leave nothing.
        search: "greedy" removes one unit at a time and ranks the others again on the pruned model: units interact, and
            this was measured better; it needs "output_divergence" and a budget in units. "one_shot" ranks once. None:
            greedy where it is possible.
        ignore: Shell patterns of unit names that stay, such as "blocks.0.*".
        seed: Of the held-out split and of everything random.

    Returns:
        The plan, with the importance of every unit as evidence, and, for a share of the MACs or parameters, what goes
        before and after `merge`.

    Raises:
        ValueError: If the budget cannot be met, an argument is unknown, there are no batches, or importances are NaN.
    """
    budget = budget_of(budget, remove)
    config = DepthConfig(importance=importance, loss=loss, replace=replace, search=search, ignore=ignore, seed=seed)
    with progress("planning depth"):
        return DepthPlanner(model, budget.kinds(DEPTH_KINDS), batches=batches, config=config).plan(budget)
