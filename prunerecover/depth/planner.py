"""The base of planners of depth: calibration samples, costs, and a plan out of the chosen units."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from prunerecover.cost.met_share import FAR
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.search.expected_passes import expected_passes
from prunerecover.depth.search.goals import Counted, Goal, Share
from prunerecover.depth.search.selection import count_by_kind, smallest_share
from prunerecover.display.progress import progress
from prunerecover.families.describe import describe, is_supported
from prunerecover.importance.saved_scores import SavedScores
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Config, Edit
from prunerecover.plan.evidence import DepthEvidence, RemovalStep, RemovedShare
from prunerecover.plan.plan import Plan
from prunerecover.plan.removed_units import edits_without_others, leave_nothing
from prunerecover.plan.units import Unit
from prunerecover.session.session import Session
from prunerecover.store.search_store import SearchStore
from prunerecover.surgery.merging import removals_of
from prunerecover.surgery.provenance import plan_for, result_of
from prunerecover.surgery.saved_cost import CLOCKS

Saved = Callable[[Sequence[Unit], str, float], float]  # of units, a cost and a share that is wanted
Searched = tuple[dict[str, float], Sequence[Unit]]  # divergence of each unit alone, and what goes


@dataclass(frozen=True)
class Decision:
    """What a search decided.

    Attributes:
        edits: In order.
        importance: Of every unit, by name.
        divergence: Of the output once units are gone, by the unit that went last.
        order: In which units went.
        tensors: That the edits name.
    """

    edits: Sequence[Edit]
    importance: dict[str, float]
    divergence: dict[str, float]
    order: Sequence[Unit]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


class DepthPlanner(ABC):
    """Plans several budgets for one model, and computes once what they share.

    Args:
        session: Network and samples.
        kinds: Kinds of the units that may go.
        config: All other arguments of `plan_depth`.

    Attributes:
        session: See above.
        units: What may go, in order of depth.
    """

    units: tuple[Unit, ...]
    usual_search: ClassVar[str]  # where divergence ranks
    by_parts: ClassVar[bool] = False  # of a supported family

    def __init__(self, session: Session, kinds: Sequence[str], config: DepthConfig) -> None:
        self.session, self.config, self.kinds = session, config, tuple(kinds)
        self.model = session.model
        config.check_ready(kinds)
        self._check()
        self.samples, self.example = session.samples, session.example
        self._scores: dict[str, float] | None = None
        self.store = SearchStore(config.store, session.device)
        with session.evaluating():
            self._prepare()
        if isinstance(config.scores, SavedScores):
            names = [unit.name for unit in self.units]
            saved = config.scores.of_units(self.model, config.registered.name, names)
            self._scores = {name: float(value) for name, value in saved.items()}
        self._begin()

    def plan(self, budget: Budget) -> Plan:
        """Return the plan of one budget; a warning says if more goes than units make necessary.

        Args:
            budget: See `plan_depth`.
        """
        self.store.extend(budget, None, False)
        passes = expected_passes(self.units, budget, self.search, by_parts=self.by_parts)
        with progress("planning depth", expected=passes * self.session.pass_seconds):
            plan = self._planned(budget, self._decide, self.units)
        if removed := DepthEvidence.of(plan.evidence).removed_share:
            _warn_of_excess(removed)
        return plan

    def part(self, budget: Budget, kinds: Sequence[str] | None = None) -> Plan:
        """Return the plan of a part of a larger budget, whose rest goes otherwise: one search is enough.

        Args:
            budget: Part, as of `plan_depth`.
            kinds: Kinds of the units that may go, of those that the planner knows; None: all.
        """
        self.store.extend(budget, kinds, True)
        units = [unit for unit in self.units if kinds is None or unit.kind in kinds]
        return self._planned(budget, self._decide_part, units)

    def _planned(
        self, budget: Budget, decide: Callable[[Budget, Sequence[Unit]], Decision], units: Sequence[Unit]
    ) -> Plan:
        with self.session.evaluating():
            decided = decide(_aim(budget), units)
            removed = self._removed_by(decided.edits, budget) if decided.edits else {}
            order = self._steps(decided)
        found = DepthEvidence(
            units={unit.name: unit.kind for unit in self.units},
            importance=decided.importance,
            samples=self.samples.n_samples,
            divergence=decided.divergence,
        )
        return plan_for(
            self.model,
            decided.edits,
            method=f"depth/{self.config.registered.name}",
            arguments={
                "budget": budget.to_dict(),
                "replace": self.config.replace,
                "search": self.search,
                "kinds": sorted({unit.kind for unit in self.units}),
                "ignore": list(self.config.ignore),
            },
            seed=self.config.seed,
            tensors=decided.tensors,
            example=self.example,
            evidence={**found.to_dict(), **removed, **order},
        )

    def rank(self) -> dict[str, float]:
        """Return the importance of every unit as it is before anything goes; computed once."""
        if self._scores is None:
            with progress("scoring units"), self.session.evaluating():
                self._scores = self._kept(self._ranked)
        return self._scores

    @property
    def search(self) -> str:
        """Name of the search."""
        by_divergence = self.config.registered.name == "output_divergence"
        return self.config.search or (self.usual_search if by_divergence else "one_shot")

    def share_of_one(self, kind: str, cost: str) -> float:
        """Return the share of the model's cost that goes with one unit of a kind, merged: the mean over half of them.

        Args:
            kind: Of the units.
            cost: "macs", "params" or "latency", which is measured on the first batch.
        """
        units = [unit for unit in self.units if unit.kind == kind][::2]
        return self.share_saved(units, cost) / len(units)

    def share_saved(self, units: Sequence[Unit], cost: str) -> float:
        """Return the share of the model's cost that goes with some units which leave nothing, merged."""
        with self.session.evaluating():
            return self._saved_by_units(units, cost)

    def removed_share(self, plan: Plan, cost: str) -> float:
        """Return the share of the model's cost that goes with a plan, merged; `cost` as of `share_of_one`."""
        with self.session.evaluating():
            return self.session.cost(cost).removed_share(plan.edits)

    def _begin(self) -> None:
        """Tell the store what the search is of."""
        how = {name: value for name, value in vars(self.config).items() if name not in ("scores", "store")}
        self.session.begin(self.store, type(self).__name__, self.kinds, how, self._scores)

    def _kept(self, importance: Callable[[], dict[str, float]], gone: Sequence[Unit] = ()) -> dict[str, float]:
        """Return importances of units, which the store may know: divergences by themselves, and none of a function."""
        if self.config.registered.name == "output_divergence" or not isinstance(self.config.importance, str):
            return importance()
        return self.store.result("importance", (unit.name for unit in gone), importance)

    def _check(self) -> None:  # noqa: B027
        """Raise ValueError if the model cannot be planned for, whatever it is called with."""

    @abstractmethod
    def _prepare(self) -> None:
        """Find the units."""

    @abstractmethod
    def _ranked(self) -> dict[str, float]:
        """Return the importance of every unit of the dense model."""

    @abstractmethod
    def _decide(self, budget: Budget, units: Sequence[Unit]) -> Decision:
        """Search for what goes.

        Args:
            budget: How much.
            units: That may go.
        """

    def _decide_part(self, budget: Budget, units: Sequence[Unit]) -> Decision:
        """Search as `_decide` does, but once where several sets would be compared."""
        return self._decide(budget, units)

    @abstractmethod
    def _saved_by_units(self, units: Sequence[Unit], cost: str, wanted: float | None = None) -> float:
        """Return the share of a cost that goes with some units which leave nothing; see `DenseCost.removed_share`."""

    def _goal(self, units: Sequence[Unit], budget: Budget, saved: Saved) -> Goal:
        """Return how much of some units has to go.

        Args:
            units: That may go.
            budget: In units, or a share of a cost.
            saved: Measures the share of a cost that goes with some units, to be compared with a share.
        """
        if budget.share is None:
            return Counted(units, budget.counts(count_by_kind(units)))
        cost, share = budget.share
        counted = "macs" if cost == "latency" else cost  # no clock tells what a single unit takes
        return Share(
            units,
            share,
            lambda chosen: saved(chosen, cost, share),
            lambda alone: saved(alone, counted, share),
            most_blocks=len(describe(self.model).blocks) - 1 if is_supported(self.model) else None,
        )

    @property
    def _known(self) -> dict[str, float]:
        """The divergence of every unit alone, if it is known."""
        return self._scores or {} if self.config.registered.name == "output_divergence" else {}

    def _saver(self, cost: str) -> Callable[[Sequence[Unit]], float]:
        return lambda units: self._saved_by_units(units, cost)

    def _steps(self, decided: Decision) -> dict[str, Any]:
        """Describe the model after each unit, as evidence; nothing where units cannot go one by one."""
        if not leave_nothing(decided.edits):
            return {}
        steps, blocks, gone = list[RemovalStep](), list[str](), list[str]()
        for unit in decided.order:
            gone.append(unit.name)
            blocks += [unit.name] if unit.kind == "block" else []
            removals = removals_of(self.model, blocks)
            config = next((edit.set for edit in removals if isinstance(edit, Config)), {})
            edits = edits_without_others(decided.edits, gone, config)
            result = result_of(self.model, edits, self.example)
            steps.append(RemovalStep(unit=unit.name, config=config, result=result))
        return DepthEvidence(order=tuple(steps)).to_dict() if steps else {}

    def _removed_by(self, edits: Sequence[Edit], budget: Budget) -> dict[str, Any]:
        """Measure what goes before and after `merge`."""
        if budget.share is None or budget.share[0] == "latency":
            return {}
        cost, asked = budget.share
        dense = self.session.cost(cost)
        live, merged = dense.live_share(edits), dense.removed_share(edits)
        smallest = smallest_share(self.units, self._saver(cost), cost)
        said = {"cost": cost, "live": live, "merged": merged, "asked": asked, "smallest_unit": smallest}
        return DepthEvidence(removed_share=RemovedShare.model_validate(said)).to_dict()


def _warn_of_excess(removed: RemovedShare) -> None:
    """Warn if more goes than units make necessary, by more than two points."""
    if removed.merged - removed.asked > max(removed.smallest_unit, FAR):
        warnings.warn(
            f"The plan removes {removed.merged:.1%} of the {removed.cost} for a budget of {removed.asked:.1%}, "
            f"although the smallest unit holds {removed.smallest_unit:.1%}: what comes nearer was not found, or "
            "changes the output more. Ignore fewer units, or give the budget in units (remove=...).",
            stacklevel=5,
        )


def numbers(scores: Mapping[str, Tensor]) -> dict[str, float]:
    """Return scores of units as numbers."""
    return {name: float(score) for name, score in scores.items()}


def _aim(budget: Budget) -> Budget:
    """Return what is planned for: clocks do not tell shares of latency apart that are as near as `CLOCKS`."""
    if budget.latency is None:
        return budget
    return Budget(latency=(share := budget.shares["latency"]) - min(CLOCKS, 0.05 * share))
