"""Plan depth and width together for one budget: a choice out of the library of variants, or one of both alone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch import nn

from prunerecover.boundary.search import Evaluate, Trial, accuracies_of
from prunerecover.cost.met_share import Wanted, met_share
from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.display.progress import beside_other_displays, progress
from prunerecover.divergence.registry import Divergence, comparing_by
from prunerecover.importance.measuring.losses import Loss
from prunerecover.model.batches import Batches
from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import DepthEvidence, Saved, SplitEvidence, TriedSplit
from prunerecover.plan.plan import Plan
from prunerecover.refusal import Refusal
from prunerecover.session.asked import planned_as_asked
from prunerecover.session.session import Session
from prunerecover.shared_budget.arguments import SharedBudgetConfig, check_costs
from prunerecover.shared_budget.planner import SharedBudgetPlanner
from prunerecover.solvers.program import OVER
from prunerecover.solvers.refine import MISSED, State
from prunerecover.surgery.saved_cost import CLOCKS
from prunerecover.width.allocation.latency_budget import STEP
from prunerecover.width.groups.rounding import RoundTo

WIDTH, DEPTH = 0.0, 1.0  # shares of the budget that depth takes where one of both goes alone
Errors = tuple[type[ValueError], ...]
HALF = 0.5  # stands for what depth takes where there is no plan of both


def plan_pruning(
    model: nn.Module,
    budget: Budget,
    *,
    batches: Batches,
    loss: Loss | None = None,
    kinds: str | Sequence[str] | None = None,
    equal_layers: bool = False,
    round_to: RoundTo | None = None,
    ignore: Sequence[str] = (),
    evaluate: Evaluate | None = None,
    seed: int = 0,
    divergence: str | Divergence | None = None,
) -> Plan:
    """Decide what goes in depth and in width within one budget; the model is bit-identical afterwards.

    Every site may stay, get smaller by several sizes, or go and leave a replacement. Each of these variants is fitted
    and scored alone by the output divergence on held-out samples; an integer program chooses one for each site, and
    the choice is refined while the divergence falls: alternatives are scored again on top of it. What is chosen is
    fitted in order, on the pruned network towards the dense one, and tuned on the output.
    Where units of one of both cannot go at all, the other takes the budget. With `evaluate`, this plan, width alone and
    depth alone are recovered for a short while, and the most accurate one is returned.

    Args:
        model: Any network, wrapped or not.
        budget: A share of the MACs, parameters or latency of the model once it is merged, or shares of several of them,
            which are met at once; or what may be left, such as Budget(params="100M"). Latency is measured again once
            all is planned; a plan that misses it is made anew for more, and a warning says if it still does.
        batches: Calibration batches, labelled unless `loss` reads labels from elsewhere; see `plan_width`. Every 4th
            sample is held out, to compare what the others are fitted to.
        loss: See `plan_width`.
        kinds: Of the units that may go, in depth and width; None: all that are usual in `plan_depth` and `plan_width`,
            and experts for a share of the parameters.
        equal_layers: See `plan_width`.
        round_to: See `plan_width`.
        ignore: Shell patterns of names of units and groups that stay, such as "blocks.0.*".
        evaluate: Recovers the pruned models of some trials, each for a short while, and returns their accuracies in
            percent, as in `plan_boundary`; splits are compared by these instead of their outputs. It gets as many
            trials at once as do not depend on one another.
        seed: Of the held-out split, of recoveries and of everything random.
        divergence: How outputs are compared: a name among `divergence.registry.DIVERGENCES`, or a callable `(dense,
            pruned) -> scalar`; None: what their structure asks for.

    Returns:
        One plan, of depth first and width second; its evidence holds the `splits` that were tried.

    Raises:
        ValueError: If the budget is in units or cannot be met, an argument is unknown, labels are missing, or nothing
            can go.
        TypeError: If an argument is of another type.
    """
    check_costs(budget)
    config = SharedBudgetConfig(
        loss=loss, kinds=kinds, equal_layers=equal_layers, round_to=round_to, ignore=ignore, seed=seed
    )
    evaluate = None if evaluate is None else beside_other_displays()(evaluate)
    with comparing_by(divergence):
        return joint_plan(Session.with_dense_reference(model, batches, loss=loss, seed=seed), budget, config, evaluate)


def joint_plan(session: Session, budget: Budget, config: SharedBudgetConfig, evaluate: Evaluate | None = None) -> Plan:
    """Return `plan_pruning`'s plan for the network of a session.

    Args:
        session: Network and samples.
        budget: See `plan_pruning`.
        config: All other arguments of `plan_pruning`.
        evaluate: See `plan_pruning`.
    """
    costs = tuple(check_costs(budget).costs)

    def plan(shares: Budget) -> Plan:
        return BudgetSearch(SharedBudgetPlanner(session, costs, config), shares, evaluate).run()

    with progress("planning depth and width"):
        return planned_as_asked(session, budget, plan)


@dataclass(frozen=True)
class Candidate:
    """A plan that is compared with others.

    Attributes:
        plan: The plan.
        saved: Share of each cost that goes with it.
        divergence: Of the output on held-out samples; None: it cannot be compared, or nothing has to be.
        warnings: What planning warned of.
    """

    plan: Plan
    saved: Mapping[str, float] = field(compare=False)  # two measurements of one plan differ
    divergence: float | None = None
    warnings: tuple[Warning | str, ...] = ()


class BudgetSearch:
    """Plans one budget: depth and width together, or one of both alone.

    Args:
        planner: Planner of the budget's costs.
        budget: Shares of them.
        evaluate: See `plan_pruning`; None: plans are compared by their outputs.

    Attributes:
        tried: What was tried, in order.
        candidates: Plans, by the share of the budget that depth takes.
    """

    def __init__(self, planner: SharedBudgetPlanner, budget: Budget, evaluate: Evaluate | None = None) -> None:
        self.planner, self.budget, self.evaluate = planner, budget, evaluate
        self.wanted = budget.shares
        self.tried: list[TriedSplit] = []
        self.candidates: dict[float, Candidate] = {}

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
            self._try(self._together, refusals=(Refusal, NotRemovable))
        if not self.candidates or (not self.is_lonely and (self.evaluate is not None or planner.is_reconstructed)):
            for share, reason in ((WIDTH, planner.why_no_width), (DEPTH, planner.why_no_depth)):
                if not reason:
                    self._try(partial(self._alone, depth=share == DEPTH), share)
        if not self.is_lonely:
            self._recover()
        best = self._best()
        for message in self.candidates[best].warnings:
            warnings.warn(message, stacklevel=4)
        return self._described(best, self.candidates[best])

    @property
    def is_lonely(self) -> bool:
        """Whether nothing can go in depth, or nothing in width."""
        return bool(self.planner.why_no_depth or self.planner.why_no_width)

    def _try(self, make: Callable[[], Candidate], share: float | None = None, refusals: Errors = (ValueError,)) -> None:
        """Make a candidate, and note what came of it.

        Args:
            make: Makes it.
            refusals: Errors that say that there is none.
            share: Of the budget, that depth takes; None: as much as it turns out to be.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found = make()
            except refusals as refusal:
                self.tried.append(TriedSplit(depth=HALF if share is None else share, refused=str(refusal)))
                return
        found = replace(found, warnings=tuple(warning.message for warning in caught))
        share = self.planner.depth_share(found.plan) if share is None else share
        divergence = None if self.evaluate is not None else found.divergence
        self.tried.append(TriedSplit(depth=share, divergence=divergence, saved=_told(found.saved)))
        self.candidates[share] = found

    def _together(self) -> Candidate:
        """Return the plan of depth and width together, made anew while it is measured to miss the budget."""
        planner, states = self.planner, list[State]()

        def together(asked: Mapping[str, float]) -> State:
            states.append(planner.together(asked, 1, states[-1]) if states else planner.together(asked))
            return states[-1]

        state, saved = met_share(
            self._asked(MISSED, 2 * CLOCKS),
            together,
            lambda state: planner.removed_shares(planner.edits(state.chosen)),
        )
        plan = planner.plan(*planner.finished(state))
        divergence = planner.divergence(plan) if planner.is_reconstructed else state.divergence
        return Candidate(plan, saved, divergence)

    def _alone(self, *, depth: bool) -> Candidate:
        """Return the plan of depth or of width alone, made anew while it is measured to miss the budget.

        Of several costs the plan is for one: that whose plan comes nearest to all of them.
        """
        planner = self.planner

        def alone(asked: Mapping[str, float]) -> Candidate:
            plans = [planner.alone(depth, cost, share) for cost, share in asked.items() if share]
            return min((Candidate(plan, planner.removed_shares(plan.edits)) for plan in plans), key=self._missed)

        found, _ = met_share(self._asked(CLOCKS, CLOCKS + STEP), alone, lambda found: found.saved)
        known = self.is_lonely or self.evaluate is not None
        return found if known else replace(found, divergence=planner.divergence(found.plan))

    def _asked(self, missed: float, over: float) -> dict[str, Wanted]:
        """Return the shares with their tolerances; what is exceeded is asked for again where time is measured.

        Args:
            missed: Share by which a counted cost may be missed.
            over: Share by which the latency may be exceeded.
        """
        counted = Wanted(0.0, missed, OVER if "latency" in self.wanted else math.inf)
        of = {"latency": Wanted(0.0, CLOCKS, over)}
        return {cost: replace(of.get(cost, counted), share=share) for cost, share in self.wanted.items()}

    def _missed(self, found: Candidate) -> tuple[float, float]:
        """Return how much of a cost is missed at most, and how much goes in all."""
        missed = max(share - found.saved[cost] for cost, share in self.wanted.items())
        return max(0.0, missed - CLOCKS), sum(found.saved.values())

    def _recover(self) -> None:
        """Learn the accuracies after a short recovery of all candidates."""
        if self.evaluate is None:
            return
        able = [i for i, one in enumerate(self.tried) if not one.refused]
        trials = [Trial(self.candidates[self.tried[i].depth].plan, self.planner.config.seed) for i in able]
        for i, accuracy in zip(able, accuracies_of(self.evaluate, trials), strict=True):
            self.tried[i] = self.tried[i].model_copy(update={"accuracy": float(accuracy)})

    def _best(self) -> float:
        able = sorted((one for one in self.tried if not one.refused), key=lambda one: one.depth)
        if not able:
            reasons = " ".join(dict.fromkeys(one.refused for one in self.tried))
            raise ValueError(
                f"Expected a budget that depth and width can meet, but {self.budget.to_dict()} is not one. {reasons}"
            )
        return min(able, key=_behind).depth

    def _described(self, share: float, found: Candidate) -> Plan:
        """Return the plan as one for the whole budget."""
        plan = found.plan
        if not plan.edits:
            return plan
        arguments = {"budget": self.budget.to_dict(), "depth_share": share, **self.planner.config.said()}
        made_by = plan.made_by.model_copy(update={"method": "joint", "arguments": arguments})
        tried = SplitEvidence(splits=tuple(self.tried), depth_share=share, saved=_told(found.saved))
        evidence = {**plan.evidence, **tried.to_dict()}
        part = DepthEvidence.of(evidence).removed_share
        if part is not None and [*self.wanted] != [part.cost]:  # of one cost of several, or of the MACs for a latency
            del evidence["removed_share"]
        elif part is not None:
            live = self.planner.session.cost(part.cost).live_share(plan.edits)
            merged, asked = found.saved[part.cost], self.wanted[part.cost]
            whole = part.model_copy(update={"live": live, "merged": merged, "asked": asked})
            evidence |= DepthEvidence(removed_share=whole).to_dict()
        return plan.model_copy(update={"made_by": made_by, "evidence": evidence}).with_tensors(plan.tensors)


def _told(saved: Mapping[str, float]) -> Saved:
    """Return what goes of one cost as a number, and of several by their names."""
    return dict(saved) if len(saved) > 1 else next(iter(saved.values()))


def _behind(split: TriedSplit) -> float:
    """Return what the best split has least of: lost accuracy where it was recovered, else divergence."""
    if split.accuracy is not None:
        return -split.accuracy
    return math.inf if split.divergence is None else split.divergence
