"""BoundaryDPT (arXiv 2607.03784): planning of the numbers of attentions and activations to remove, and of the units.

The damage of either type shows only after recovery, so a few splits of the budget are recovered for a short while
(`evaluate`, given by the caller: nothing is trained here), an accuracy map is fitted to the results, and the best split
of the map is planned. The units of each type are chosen within the type (`plan_depth`).

Differences from the paper, by default: the runs lie on the budget's own line, the last runs are chosen by earlier
results (`next_split`), and the divergences of all splits before any training guide the map (`guide`), so 5 runs are
enough, against 22 in the paper; units are removed by output divergence, one after the other, with the best-fitting
replacement instead of an identity. `PUBLISHED` holds the arguments of the paper's choices. Every run starts from the
dense weights; the paper passes weights on from run to run.
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
from prunerecover.depth.depth_search import DepthSearch
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
    """Find the best split of a budget between attentions and activations, by short runs, and plan the split.

    Args:
        model: Supported model whose feed-forward parts are not gated (gated parts have no activation unit).
        budget: Removed share, `Budget(macs=...)`, or `Budget(latency=...)` measured on the device of the model.
        n_remove: Number of attentions and activations to remove, both types together.
        n_keep: Number of attentions and activations to keep, both types together. Exactly one of the three is given.
        batches: Calibration batches; see `plan_depth`.
        evaluate: Function from trials to accuracies, see `BoundarySearch`.
        design: Design of the runs, see `BoundaryConfig`.
        runs: Number of runs, see `BoundaryConfig`.
        surface: Surface of the map, see `fit_map`.
        dense: Accuracy of the dense model, see `BoundaryConfig`.
        noise: Standard deviation of a run, see `BoundaryConfig`.
        importance: Importance of units, see `plan_depth`.
        loss: Loss function, see `plan_depth`.
        replace: Replacement of units, see `plan_depth`.
        search: Search within a type, see `plan_depth`.
        ignore: Units to keep, see `plan_depth`.
        seed: Seed, see `plan_depth`; also of the first run of each split.

    Returns:
        The plan, with the trials, the predicted accuracy and its expected regret as evidence.

    Raises:
        ValueError: If an argument is unknown, the budget cannot be met, or the runs do not determine the surface.
    """
    depth = DepthConfig(importance=importance, loss=loss, replace=replace, search=search, ignore=ignore, seed=seed)
    config = BoundaryConfig(design=design, runs=runs, surface=surface, dense=dense, noise=noise, seed=seed)
    evaluate = beside_other_displays()(evaluate)
    with progress("searching for the best split"):
        planner = DepthSearch(Session(model, batches, loss=loss, seed=seed), TYPES, depth)
        feasible = feasible_within(planner, budget, n_remove=n_remove, n_keep=n_keep)
        return BoundarySearch(planner, feasible.splits, evaluate, config, feasible.more).run()[1]
