"""BoundaryDPT (arXiv 2607.03784): how many attentions and how many activations go, and which of them.

How much either type hurts shows only after recovery, so a few splits of the budget are recovered for a short while
(`evaluate`, given by the caller: nothing is trained here), an accuracy map is fitted to the results, and the best split
of the map is planned. Which units of each type go is decided within the type (`plan_depth`).

Where we differ from the paper, by default: the runs lie on the budget's own line and the last ones are chosen as the
results come in (`refinement`), so 5 runs do what the paper needs 22 for; units go by output divergence, one after the
other, and leave what fits best instead of an identity. `PUBLISHED` are the arguments of the paper's own choices. Every
run starts from the dense weights; the paper hands weights on from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from prunerecover.accuracy_map import AccuracyMap, MapPoint, check_fit, fit_map
from prunerecover.batches import Batches
from prunerecover.boundary_budget import TYPES, feasible_within, layers_of
from prunerecover.budget import Budget
from prunerecover.depth import DepthPlanner
from prunerecover.designs import (
    Split,
    axes_and_staircase,
    interleaved,
    one_type_at_a_time,
    spread,
)
from prunerecover.plan import Plan
from prunerecover.refinement import FIRST, next_split

DESIGNS = ("line", "spread", "axes_and_staircase", "one_type_at_a_time", "interleaved")
PUBLISHED: Mapping[str, Any] = MappingProxyType(
    {
        "design": "axes_and_staircase",
        "surface": "polynomial",
        "importance": "gate_gradient",
        "replace": "identity",
        "search": "one_shot",
    }
)


@dataclass(frozen=True)
class Trial:
    """One short run.

    Attributes:
        plan: What is removed before it; without edits for the dense model.
        seed: Of the run. Two trials of one plan differ in it.
    """

    plan: Plan
    seed: int


Evaluate = Callable[[Sequence[Trial]], Sequence[float]]  # accuracies after the runs, in percent


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
    importance: str = "output_divergence",
    loss: Callable[[nn.Module, Any], Tensor] | None = None,
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
        design: See `BoundarySearch`.
        runs: How many runs "line" and "spread" make.
        surface: See `fit_map`.
        dense: Accuracy of the dense model in percent after such a run; no prediction may lie above it.
        noise: Standard deviation of the accuracy of one run, in points.
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
    planner = DepthPlanner(
        model,
        TYPES,
        batches=batches,
        importance=importance,
        loss=loss,
        replace=replace,
        search=search,
        ignore=ignore,
        seed=seed,
    )
    feasible = feasible_within(planner, budget, n_remove=n_remove, n_keep=n_keep)
    splits, more = feasible.splits, feasible.more
    return BoundarySearch(planner, splits, evaluate, design, runs, surface, dense, noise, seed, more).run()[1]


@dataclass
class BoundarySearch:
    """Finds the split of a budget and its plan.

    Args:
        planner: Plans splits; made for attentions and activations.
        splits: The feasible splits: (attentions, activations) removed.
        evaluate: Recovers the pruned models of some trials, each for a short while, and returns their accuracies in
            percent. It gets as many trials at once as do not depend on one another.
        design: Which splits are run: "line" (spread over the feasible splits, the last ones chosen by the results),
            "spread", the paper's "axes_and_staircase" (its published table), "one_type_at_a_time" (Algorithm 1) and
            "interleaved" (Algorithm 2), or the splits themselves.
        runs: How many runs "line" and "spread" make.
        surface: See `fit_map`.
        dense: Accuracy of the dense model in percent after such a run; no prediction may lie above it.
        noise: Standard deviation of the accuracy of one run, in points.
        seed: Of the first run; each repetition of a split takes the next.
        more: See `Feasible`; of further splits the one nearest to the pick is planned, as the runs say nothing of
            splits off their line. The prediction is the pick's.
    """

    planner: DepthPlanner
    splits: Sequence[Split]
    evaluate: Evaluate
    design: str | Sequence[Split] = "line"
    runs: int = 5
    surface: str | None = None
    dense: float | None = None
    noise: float = 0.5
    seed: int = 0
    more: Callable[[Plan], tuple[Split, ...]] | None = None
    points: list[MapPoint] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the arguments."""
        if isinstance(self.design, str) and self.design not in DESIGNS:
            raise ValueError(f"Expected argument design to be one of {', '.join(DESIGNS)}, but got '{self.design}'.")
        if self.runs < FIRST and self.design in ("line", "spread"):
            raise ValueError(f"Expected argument runs to be at least {FIRST}, for a curve, but got {self.runs}.")
        check_fit(self.surface, self.noise)
        self._fitted([MapPoint(*split, 50.0) for split in self._designed()])  # before the runs, not after them

    @property
    def layers(self) -> tuple[int, int]:
        """How many attentions and activations there are to choose from."""
        return layers_of(self.planner)

    @property
    def n_runs(self) -> int:
        """How many runs it makes."""
        return self.runs if self.design == "line" and len(self.splits) >= FIRST else len(self._designed())

    def run(self) -> tuple[AccuracyMap, Plan]:
        """Make the runs, fit the map and plan the best split that meets the budget."""
        for splits in iter(self._next, []):
            self._measure(splits)
        fitted = self._fitted(self.points)
        pick = fitted.best(splits=self.splits)
        split, plan = pick.split, self.plan_of(pick.split)
        while self.more is not None and (further := self.more(plan)):
            split = min(further, key=lambda other: (abs(other[0] - split[0]) + abs(other[1] - split[1]), other))
            plan = self.plan_of(split)
        evidence = {
            **plan.evidence,
            "trials": [asdict(point) for point in self.points],
            "predicted": {
                "attention": pick.attention,
                "activation": pick.activation,
                "accuracy": pick.predicted,
                "regret": asdict(pick.regret),
            },
        }
        arguments = {**plan.made_by.arguments, "design": self.design, "surface": self.surface, "noise": self.noise}
        made_by = plan.made_by.model_copy(
            update={"method": f"boundary/{self.planner.importance}", "arguments": arguments}
        )
        return fitted, plan.model_copy(update={"made_by": made_by, "evidence": evidence})

    def plan_of(self, split: Split) -> Plan:
        """Return the plan that removes a split."""
        if split == (0, 0):
            return Plan()
        return self.planner.plan(Budget(remove=dict(zip(TYPES, split, strict=True))))

    def _next(self) -> list[Split]:
        """Return the splits to run now, given the points; none when there are enough."""
        if self.design == "line":
            return self._next_on_line()
        return [] if self.points else list(self._designed())

    def _next_on_line(self) -> list[Split]:
        if not self.points:
            return list(spread(self.splits, FIRST)) if len(self.splits) > 1 else list(self.splits)
        if len(self.points) >= self.runs or len(self.splits) < FIRST:
            return []
        return [next_split(self.points, self.splits, self.layers, noise=self.noise)]

    def _fitted(self, points: Sequence[MapPoint]) -> AccuracyMap:
        # Runs along the budget alone determine no polynomial, however few splits it has.
        along = self.design in ("line", "spread")
        return fit_map(
            points,
            self.layers,
            surface=self.surface or ("gaussian_process" if along else None),
            splits=self.splits,
            dense=self.dense,
            noise=self.noise,
            seed=self.seed,
        )

    def _designed(self) -> Sequence[Split]:
        """Return the splits that are run; with the design "line" such as may be run."""
        n_remove = max(sum(split) for split in self.splits)
        if self.design in ("line", "spread"):
            return spread(self.splits, self.runs)
        if self.design == "axes_and_staircase":
            return axes_and_staircase(self.layers, min(n_remove, *self.layers))
        if self.design == "one_type_at_a_time":
            return one_type_at_a_time(self.layers, n_remove)
        if self.design == "interleaved":
            return interleaved(self.layers, n_remove)
        assert not isinstance(self.design, str)
        return list(self.design)

    def _measure(self, splits: Sequence[Split]) -> None:
        asked = [point.split for point in self.points]
        trials = []
        for split in splits:
            trials.append(Trial(self.plan_of(split), self.seed + asked.count(split)))
            asked.append(split)
        accuracies = self.evaluate(trials)
        if len(accuracies) != len(trials):
            raise ValueError(
                f"Expected evaluate to return one accuracy per trial, {len(trials)} in all, but got {len(accuracies)}."
            )
        self.points += [MapPoint(*split, accuracy) for split, accuracy in zip(splits, accuracies, strict=True)]
