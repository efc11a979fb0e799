"""Search for the plan of one budget, among plans of depth and width together and of each alone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from prunerecover.boundary.search import Evaluate, Trial, accuracies_of
from prunerecover.cost.met_share import Wanted, enough, met_share
from prunerecover.cost.units.cost_names import ALONE
from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.display.progress import progress
from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import SplitEvidence, TriedSplit
from prunerecover.plan.plan import Plan
from prunerecover.planning.kept import kept_plan
from prunerecover.planning.plan_of_choice import depth_share
from prunerecover.planning.planner import Planner
from prunerecover.refusal import Refusal
from prunerecover.session.removed_share import share_evidence
from prunerecover.solvers.program import OVER
from prunerecover.solvers.refine import MISSED, Start
from prunerecover.solvers.state import State
from prunerecover.surgery.saved_cost import CLOCKS
from prunerecover.width.allocation.latency_budget import STEP

WIDTH, DEPTH = 0.0, 1.0  # depth's share of the budget where one of both is pruned alone
Errors = tuple[type[ValueError], ...]
NO_CHOICE: Errors = (Refusal, NotRemovable)  # errors of the library for a budget that it cannot meet
AGAIN = 2  # rounds of refinement for a plan made again
NEAR = 0.1  # of the least divergence: how much more a scored rival may have
SCORED, LOOKS = 4, 8  # plans to score at most, and choices whose cost is measured for that
HALF = 0.5  # recorded as depth's share where no joint plan exists


@dataclass(frozen=True)
class Candidate:
    """Plan in the comparison.

    Attributes:
        plan: The plan.
        saved: Removed share of each cost.
        divergence: Divergence of the output on unseen or held-out samples; None: not comparable, or not needed.
        warnings: Warnings of the planning.
    """

    plan: Plan
    saved: Mapping[str, float] = field(compare=False)  # two measurements of one plan differ
    divergence: float | None = None
    warnings: tuple[Warning | str, ...] = ()


class BudgetSearch:
    """Planner of one budget: depth and width together, or either alone.

    Args:
        planner: Planner of the budget's costs.
        budget: Budget, in shares of costs.
        evaluate: Recovery of candidates, see `plan_pruning`; None: plans are compared by their outputs.

    Attributes:
        tried: Attempts in order.
        candidates: Plans by the number of the attempt.
    """

    def __init__(self, planner: Planner, budget: Budget, evaluate: Evaluate | None = None) -> None:
        self.planner, self.budget, self.evaluate = planner, budget, evaluate
        self.wanted = budget.shares
        self.tried: list[TriedSplit] = []
        self.candidates: dict[int, Candidate] = {}
        self._met: dict[tuple[str, ...], float] = {}  # divergences of choices, by sites and names
        self._made: dict[tuple[str, ...], float] = {}  # those with a plan

    def run(self) -> Plan:
        """Return the best plan.

        Raises:
            ValueError: If there is none, or labels are missing.
        """
        if not any(self.wanted.values()):
            return Plan()
        planner = self.planner
        planner.score_width()
        if planner.has_library:
            self._try(partial(self._judged, self.together), refusals=NO_CHOICE)
            if planner.is_reconstructed and not self.is_lonely and self.evaluate is None:
                whole_units = partial(self.together, depth_alone=True)
                self._try(partial(self._judged, whole_units), DEPTH, NO_CHOICE)
        if not self.candidates or (not self.is_lonely and self.evaluate is not None):
            others = bool(self.tried) and not set(self.wanted) <= set(ALONE)  # their refusal has the reason
            for share, reason in ((WIDTH, planner.why_no_width), (DEPTH, planner.why_no_depth)):
                if not reason and not others:
                    self._try(partial(self._alone, depth=share == DEPTH), share)
        usual = len(self.tried)
        if planner.config.score is not None:
            self._try_rivals()
        self._compare()
        best = self._best(usual)
        for message in self.candidates[best].warnings:
            warnings.warn(message, stacklevel=6)
        return self._described(best)

    @property
    def is_lonely(self) -> bool:
        """Whether only depth, or only width, can be pruned."""
        return bool(self.planner.why_no_depth or self.planner.why_no_width)

    def _try(self, make: Callable[[], Candidate], share: float | None = None, refusals: Errors = (ValueError,)) -> None:
        """Make a candidate, and note the result.

        Args:
            make: Maker of the candidate.
            refusals: Errors of a maker without a candidate.
            share: Share of the budget that depth takes; None: as in the plan.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found = make()
            except refusals as refusal:
                self.tried.append(TriedSplit(depth=HALF if share is None else share, refused=str(refusal)))
                return
        found = replace(found, warnings=tuple(warning.message for warning in caught))
        share = depth_share(self.planner.session, self.planner.budgeted[0], found.plan) if share is None else share
        divergence = None if self.evaluate is not None else found.divergence
        self.tried.append(TriedSplit(depth=share, divergence=divergence, saved=dict(found.saved)))
        self.candidates[len(self.tried) - 1] = found

    def together(self, *, depth_alone: bool = False) -> Candidate:
        """Return the plan of depth and width together, made again while it misses the budget as measured.

        Args:
            depth_alone: Whether nothing is narrowed.
        """
        planner, found = self.planner, list[Start]()
        # the share of the latency stays the wanted one: the final clock's reading of the former choice corrects it
        clocked = {cost: share for cost, share in self.wanted.items() if cost == "latency"}

        def together(asked: Mapping[str, float]) -> State:
            again = (AGAIN, found[-1]) if found else ()
            state = planner.together({**asked, **clocked}, *again, depth_alone=depth_alone, met=self._meet)
            return next((old for old, _ in found if old.names == state.names), state)

        def saved_by(state: State) -> Mapping[str, float]:
            found.append((state, planner.removed_shares(planner.edits(state.chosen))))
            return found[-1][1]

        with planner.session.evaluating():
            expected = planner.unscored.expected_passes * planner.session.pass_seconds
        with progress("choosing variants", expected=expected):
            return self._finished(*met_share(self._asked(MISSED, 2 * CLOCKS), together, saved_by))

    def _meet(self, state: State) -> None:
        self._met[state.said] = state.divergence

    def _finished(self, state: State, saved: Mapping[str, float]) -> Candidate:
        """Return the plan of a choice, fitted on all samples and tuned."""
        self._made[state.said], planner = state.divergence, self.planner
        names = "joint", *state.said
        plan = kept_plan(planner.store, names, lambda: planner.plan(*planner.finished(state)), everywhere=True)
        return Candidate(plan, saved, state.divergence)

    def _try_rivals(self) -> None:
        """Make plans of near rivals, of least divergence first: choices met that meet the budget."""
        best = next(iter(self._made.values()), -math.inf)
        near = {names for names, far in self._met.items() if far <= (1 + NEAR) * best} - self._made.keys()
        for names in sorted(near, key=lambda names: (self._met[names], names))[:LOOKS]:
            if len(self.candidates) == SCORED:
                return
            with suppress(*NO_CHOICE):
                self._try_rival(State(self.planner.library, dict(zip(names[::2], names[1::2], strict=True))))

    def _try_rival(self, state: State) -> None:
        """Make the plan of a choice that meets the budget."""
        with self.planner.session.evaluating():
            saved = self.planner.removed_shares(self.planner.edits(state.chosen))
        if enough(self._asked(MISSED, 2 * CLOCKS), saved):
            self._try(partial(self._judged, partial(self._finished, state, saved)), refusals=NO_CHOICE)

    def _judged(self, make: Callable[[], Candidate]) -> Candidate:
        """Return a plan out of the library, of a reconstructed network with the divergence after reconstruction."""
        found, planner = make(), self.planner
        after = planner.is_reconstructed and self.evaluate is None
        return replace(found, divergence=planner.judge.divergence(found.plan)) if after else found

    def _alone(self, *, depth: bool) -> Candidate:
        """Return the plan of depth or of width alone, made again while it misses the budget as measured.

        With several costs, each has a plan for itself, and the one that comes nearest to all costs is returned.
        """
        planner = self.planner

        def alone(asked: Mapping[str, float]) -> Candidate:
            plans = [self._kept_alone(depth, cost, share) for cost, share in asked.items() if share]
            return min((Candidate(plan, planner.removed_shares(plan.edits)) for plan in plans), key=self._missed)

        found, _ = met_share(self._asked(CLOCKS, CLOCKS + STEP), alone, lambda found: found.saved)
        known = self.is_lonely or self.evaluate is not None
        return found if known else replace(found, divergence=planner.judge.divergence(found.plan))

    def _kept_alone(self, depth: bool, cost: str, share: float) -> Plan:
        names = "depth" if depth else "width", cost, str(share)
        return kept_plan(self.planner.store, names, lambda: self.planner.alone(depth, cost, share))

    def _asked(self, missed: float, over: float) -> dict[str, Wanted]:
        """Return the shares with their tolerances; where time is measured, an exceeded share is asked for again.

        Args:
            missed: Share by which a counted cost may fall short.
            over: Share by which the latency may be exceeded.
        """
        counted = Wanted(0.0, missed, OVER if "latency" in self.wanted else math.inf)
        of = {"latency": Wanted(0.0, CLOCKS, over)}
        return {cost: replace(of.get(cost, counted), share=share) for cost, share in self.wanted.items()}

    def _missed(self, found: Candidate) -> tuple[float, float]:
        """Return how much of a cost is missed at most, and how much goes in all."""
        missed = max(share - found.saved[cost] for cost, share in self.wanted.items())
        return max(0.0, missed - CLOCKS), sum(found.saved.values())

    def _compare(self) -> None:
        """Learn the scores of all candidates, or the accuracies after a short recovery."""
        plans, score = [candidate.plan for candidate in self.candidates.values()], self.planner.config.score
        if score is not None:
            entry, found = "score", self.planner.judge.scores(plans, score)
        elif self.evaluate is not None and not self.is_lonely:
            trials = [Trial(plan, self.planner.config.seed) for plan in plans]
            entry, found = "accuracy", [*accuracies_of(self.evaluate, trials)]
        else:
            return
        for i, value in zip(self.candidates, found, strict=True):
            self.tried[i] = self.tried[i].model_copy(update={entry: float(value)})

    def _best(self, usual: int) -> int:
        """Return the number of the candidate of the best score or accuracy; among equals, of the least divergence.

        Args:
            usual: Number of the first rival: rivals are chosen by a better score alone.
        """
        if not self.candidates:
            reasons = " ".join(dict.fromkeys(one.refused for one in self.tried))
            raise Refusal("a budget that depth and width can meet", f"{self.budget.to_dict()} is not one", reasons)
        order = sorted(self.candidates, key=lambda i: (i >= usual, *_behind(self.tried[i])))
        return max(order, key=lambda i: _quality(self.tried[i]))

    def _described(self, best: int) -> Plan:
        """Return the plan of a candidate as one for the whole budget."""
        share, found = self.tried[best].depth, self.candidates[best]
        plan = found.plan
        if not plan.edits:
            return plan
        arguments = {"budget": self.budget.to_dict(), "depth_share": share, **self.planner.config.said()}
        made_by = plan.made_by.model_copy(update={"method": "joint", "arguments": arguments})
        scored = {} if self.planner.config.score is None else {"picked": best}
        tried = SplitEvidence(splits=tuple(self.tried), depth_share=share, **scored)
        removed = share_evidence(self.planner.session, plan.edits, self.wanted, found.saved)
        evidence = {**plan.evidence, **tried.to_dict(), **removed}
        return plan.model_copy(update={"made_by": made_by, "evidence": evidence}).with_tensors(plan.tensors)


def _behind(split: TriedSplit) -> tuple[float, float]:
    """Return the measures that the best of equal splits minimises: the divergence if known, then the depth."""
    return math.inf if split.divergence is None else split.divergence, split.depth


def _quality(split: TriedSplit) -> float:
    """Return the score or the recovered accuracy; 0 if there is neither."""
    return next((value for value in (split.score, split.accuracy) if value is not None), 0.0)
