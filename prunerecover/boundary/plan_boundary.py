"""BoundaryDPT (arXiv 2607.03784): how many attentions and how many activations go, and which of them.

How much either type hurts shows only after recovery, so a few splits of the budget are recovered for a short while
(`evaluate`, given by the caller: nothing is trained here), an accuracy map is fitted to the results, and the best split
of the map is planned. Which units of each type go is decided within the type (`plan_depth`).

Where we differ from the paper, by default: the runs lie on the budget's own line and the last ones are chosen as the
results come in (`next_split`), and the divergences of all splits before any training are read beside them (`guide`), so
5 runs do what the paper needs 22 for; units go by output divergence, one after the other, and leave what fits best
instead of an identity. `PUBLISHED` are the arguments of the paper's own choices. Every run starts from the dense
weights; the paper hands weights on from run to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import nn

from prunerecover.boundary.designs import Split
from prunerecover.boundary.feasible import TYPES, feasible_within
from prunerecover.boundary.search import BoundaryConfig, BoundarySearch, Evaluate
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.family_planner import FamilyPlanner
from prunerecover.display.progress import beside_other_displays, progress
from prunerecover.importance.context import Importance
from prunerecover.importance.measuring.losses import Loss
from prunerecover.model.batches import Batches
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.session.session import Session

PUBLISHED: Mapping[str, Any] = MappingProxyType(
    {
        "design": "axes_and_staircase",
        "surface": "polynomial",
        "importance": "gate_gradient",
        "replace": "identity",
        "search": "one_shot",
    }
)


def plan_boundary(
    model: nn.Module,
    budget: Budget | None = None,
    *,
    n_remove: int | None = None,
    n_keep: int | None = None,
    batches: Batches,
    evaluate: Evaluate,
    design: str | Sequence[Split] = "line",
    runs: int = 5,
    surface: str | None = None,
    dense: float | None = None,
    noise: float = 0.5,
    importance: str | Importance = "output_divergence",
    loss: Loss | None = None,
    replace: str = "calibrated",
    search: str | None = None,
    ignore: Sequence[str] = (),
    seed: int = 0,
) -> Plan:
    """Find the best split of a budget between attentions and activations, by short runs, and plan it.

    Args:
        model: A supported model whose feed-forward parts are not gated (those have no activation unit).
        budget: `Budget(macs=...)`, or `Budget(latency=...)` measured on the model's device, as a share removed.
        n_remove: Number of attentions and activations to remove, or
        n_keep: to keep, both types together. Exactly one of the three is given.
        batches: Calibration batches; see `plan_depth`.
        evaluate: See `BoundarySearch`.
        design: See `BoundaryConfig`.
        runs: See `BoundaryConfig`.
        surface: See `fit_map`.
        dense: See `BoundaryConfig`.
        noise: See `BoundaryConfig`.
        importance: See `plan_depth`.
        loss: See `plan_depth`.
        replace: See `plan_depth`.
        search: See `plan_depth`.
        ignore: See `plan_depth`.
        seed: See `plan_depth`; also of the first run of each split.

    Returns:
        The plan, with the trials, the predicted accuracy and its expected regret as evidence.

    Raises:
        ValueError: If an argument is unknown, the budget cannot be met, or the runs do not determine the surface.
    """
    depth = DepthConfig(importance=importance, loss=loss, replace=replace, search=search, ignore=ignore, seed=seed)
    config = BoundaryConfig(design=design, runs=runs, surface=surface, dense=dense, noise=noise, seed=seed)
    evaluate = beside_other_displays()(evaluate)
    with progress("searching for the best split"):
        planner = FamilyPlanner(Session(model, batches, loss=loss, seed=seed), TYPES, depth)
        feasible = feasible_within(planner, budget, n_remove=n_remove, n_keep=n_keep)
        return BoundarySearch(planner, feasible.splits, evaluate, config, feasible.more).run()[1]
