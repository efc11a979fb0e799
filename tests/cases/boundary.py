"""Small network for tests of BoundaryDPT's search, and accuracies by a formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cases.engine import batches_of
from torch import nn

from prunerecover.boundary.designs import Split
from prunerecover.boundary.feasible import TYPES
from prunerecover.boundary.search import Trial
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.plan.plan import Plan
from prunerecover.session.session import Session

BATCHES = batches_of("timm", count=2)
LAYERS = 4
HOW = {"importance": "magnitude", "replace": "zero"}
QUICK = {"batches": BATCHES, **HOW}


def quick_planner(model: nn.Module, **how: Any) -> DepthSearch:
    """Return a planner of splits without fits."""
    return DepthSearch(Session(model, BATCHES), TYPES, DepthConfig(**HOW, **how))


Truth = Callable[[int, int], float]


def split_of(plan: Plan) -> Split:
    attention, activation = (len(plan.removed.get(kind, ())) for kind in TYPES)
    return attention, activation


class Told:
    """Accuracies by a formula in (attentions, activations removed), with a record of the trials asked for together."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.asked: list[list[Trial]] = []

    def __call__(self, trials: Sequence[Trial]) -> list[float]:
        self.asked.append(list(trials))
        return [self.truth(*split_of(trial.plan)) for trial in trials]

    @property
    def splits(self) -> list[list[Split]]:
        return [[split_of(trial.plan) for trial in trials] for trials in self.asked]

    @property
    def runs(self) -> list[tuple[Split, int]]:
        return [(split_of(trial.plan), trial.seed) for trials in self.asked for trial in trials]


def attention_hurts(m: int, n: int) -> float:
    return 80 - 2 * m - 0.5 * n


def hill(m: int, n: int) -> float:
    """Highest at two attentions for four units in all, falling faster with each unit of a type."""
    return 80 - 0.6 * m**2 - 0.6 * n**2
