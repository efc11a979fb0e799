"""Search of BoundaryDPT: choice of the runs, fit of the map, and the plan of the best split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

from prunerecover.boundary.accuracy_map import AccuracyMap
from prunerecover.boundary.designs import Split, axes_and_staircase, spread
from prunerecover.boundary.feasible import TYPES, layers_of
from prunerecover.boundary.fit_map import check_fit, fit_map
from prunerecover.boundary.map_points import MapPoint
from prunerecover.boundary.next_split import FIRST, first_splits, next_split
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import BoundaryEvidence, DepthEvidence, PredictedSplit, Regret, TrialResult
from prunerecover.plan.plan import Plan

DESIGNS = ("line", "spread", "axes_and_staircase")


@dataclass(frozen=True)
class Trial:
    """A short run.

    Attributes:
        plan: Plan to apply before the run; without edits for the dense model.
        seed: Seed of the run. Two trials of the same plan have different seeds.
    """

    plan: Plan
    seed: int


Evaluate = Callable[[Sequence[Trial]], Sequence[float]]  # accuracies after the runs, in percent


def accuracies_of(evaluate: Evaluate, trials: Sequence[Trial]) -> Sequence[float]:
    """Return the accuracies of trials, in percent.

    Raises:
        ValueError: If the number of accuracies from `evaluate` differs from the number of trials.
    """
    accuracies = evaluate(trials) if trials else []
    if len(accuracies) != len(trials):
        raise ValueError(
            f"Expected evaluate to return one accuracy per trial, {len(trials)} in all, but got {len(accuracies)}."
        )
    return accuracies


@dataclass(frozen=True, kw_only=True)
class BoundaryConfig:
    """Choice and rating of the runs of a search; checked on construction.

    Args:
        design: Design of the runs: "line" (three spread over the splits of little divergence, the rest chosen by the
            results), "spread", the paper's "axes_and_staircase" (its published table), or a list of splits.
        runs: Number of runs for "line" and "spread".
        surface: Surface of the map, see `fit_map`.
        dense: Accuracy of the dense model in percent after an equal run; predictions must not lie above.
        noise: Standard deviation of the accuracy of a run, in points.
        seed: Seed of the first run; each repetition of a split takes the next seed.

    Raises:
        ValueError: If the design or surface is unknown, or a number is out of range.
    """

    design: str | Sequence[Split] = "line"
    runs: int = 5
    surface: str | None = None
    dense: float | None = None
    noise: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the arguments."""
        if isinstance(self.design, str) and self.design not in DESIGNS:
            raise ValueError(f"Expected argument design to be one of {', '.join(DESIGNS)}, but got '{self.design}'.")
        if self.runs < FIRST and self.along_line:
            raise ValueError(f"Expected argument runs to be at least {FIRST}, for a curve, but got {self.runs}.")
        check_fit(self.surface, self.noise)

    @property
    def along_line(self) -> bool:
        """Whether the runs lie along the line of the budget."""
        return self.design in ("line", "spread")

    @property
    def guided(self) -> bool:
        """Whether divergences before any training are used beside the runs."""
        return self.along_line and self.surface in (None, "gaussian_process")


@dataclass
class BoundarySearch:
    """Search for the best split of a budget, with the plan of the split.

    Args:
        planner: Planner for attentions and activations.
        splits: Feasible splits: removed (attentions, activations).
        evaluate: Function that recovers the pruned models of some trials, each for a short while, and returns the
            accuracies in percent. All independent trials come in the same call.
        config: Choice and rating of the runs.
        more: Function for larger splits, see `Feasible`; the split nearest to the pick is planned, as the runs give no
            information off their line. The prediction stays that of the pick.
    """

    planner: DepthSearch
    splits: Sequence[Split]
    evaluate: Evaluate
    config: BoundaryConfig = BoundaryConfig()
    more: Callable[[Plan], tuple[Split, ...]] | None = None
    points: list[MapPoint] = field(default_factory=list)
    _plans: dict[Split, Plan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that the runs will determine the surface: before the runs, not afterwards."""
        self._fitted([MapPoint(*split, 50.0) for split in self._designed()], {})

    @property
    def layers(self) -> tuple[int, int]:
        """Numbers of attentions and activations to choose from."""
        return layers_of(self.planner)

    @property
    def n_runs(self) -> int:
        """Number of runs of the search."""
        return self.config.runs if self.config.design == "line" and len(self.splits) >= FIRST else len(self._designed())

    def run(self) -> tuple[AccuracyMap, Plan]:
        """Make the runs, fit the map and plan the best split that meets the budget."""
        for splits in iter(self._next, []):
            self._measure(splits)
        fitted = self._fitted(self.points, self.divergences)
        pick = fitted.best(splits=self.splits)
        split, plan = pick.split, self.plan_of(pick.split)
        while self.more is not None and (further := self.more(plan)):
            split = min(further, key=lambda other: (abs(other[0] - split[0]) + abs(other[1] - split[1]), other))
            plan = self.plan_of(split)
        found = BoundaryEvidence(
            trials=tuple(TrialResult(**asdict(point)) for point in self.points),
            predicted=PredictedSplit(
                attention=pick.attention,
                activation=pick.activation,
                accuracy=pick.predicted,
                regret=Regret(**asdict(pick.regret)),
            ),
        )
        arguments = {
            **plan.made_by.arguments,
            "design": self.config.design,
            "surface": self.config.surface,
            "noise": self.config.noise,
        }
        made_by = plan.made_by.model_copy(
            update={"method": f"boundary/{self.planner.config.registered.name}", "arguments": arguments}
        )
        return fitted, plan.model_copy(update={"made_by": made_by, "evidence": {**plan.evidence, **found.to_dict()}})

    def plan_of(self, split: Split) -> Plan:
        """Return the plan of a split."""
        if split == (0, 0):
            return Plan()
        if split not in self._plans:
            self._plans[split] = self.planner.plan(Budget(remove=dict(zip(TYPES, split, strict=True))))
        return self._plans[split]

    @cached_property
    def divergences(self) -> dict[Split, float]:
        """Output divergence of every feasible split as planned; empty without a Gaussian process along the line."""
        if not self.config.guided or len(self.splits) < FIRST:
            return {}
        return {split: _divergence(self.plan_of(split)) for split in self.splits}

    def _next(self) -> list[Split]:
        """Return the splits to run now, given the points; empty after the last run."""
        if self.config.design == "line":
            return self._next_on_line()
        return [] if self.points else list(self._designed())

    def _next_on_line(self) -> list[Split]:
        if not self.points:
            return list(first_splits(self.splits, self.layers, self.divergences))
        if len(self.points) >= self.config.runs or len(self.splits) < FIRST:
            return []
        return [
            next_split(self.points, self.splits, self.layers, divergences=self.divergences, noise=self.config.noise)
        ]

    def _fitted(self, points: Sequence[MapPoint], divergences: Mapping[Split, float]) -> AccuracyMap:
        # Runs along the budget alone determine no polynomial, however few splits it has.
        return fit_map(
            points,
            self.layers,
            surface=self.config.surface or ("gaussian_process" if self.config.along_line else None),
            splits=self.splits,
            divergences=divergences,
            dense=self.config.dense,
            noise=self.config.noise,
            seed=self.config.seed,
        )

    def _designed(self) -> Sequence[Split]:
        """Return the splits to run; with the design "line" examples of such splits."""
        n_remove = max(sum(split) for split in self.splits)
        if self.config.along_line:
            return spread(self.splits, self.config.runs)
        if self.config.design == "axes_and_staircase":
            return axes_and_staircase(self.layers, min(n_remove, *self.layers))
        assert not isinstance(self.config.design, str)
        return list(self.config.design)

    def _measure(self, splits: Sequence[Split]) -> None:
        asked = [point.split for point in self.points]
        trials = []
        for split in splits:
            trials.append(Trial(self.plan_of(split), self.config.seed + asked.count(split)))
            asked.append(split)
        accuracies = accuracies_of(self.evaluate, trials)
        self.points += [MapPoint(*split, accuracy) for split, accuracy in zip(splits, accuracies, strict=True)]


def _divergence(plan: Plan) -> float:
    """Return the output divergence of a plan, after the removal of its last unit in depth."""
    return list(DepthEvidence.of(plan.evidence).divergence.values())[-1] if plan.edits else 0.0
