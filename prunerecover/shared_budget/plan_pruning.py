"""Plan depth and width together for one budget: a choice out of the library of variants, or one of both alone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from prunerecover.plan.evidence import DepthEvidence, SplitEvidence, TriedSplit
from prunerecover.plan.plan import Plan
from prunerecover.refusal import Refusal
from prunerecover.session.session import Session
from prunerecover.shared_budget.arguments import SharedBudgetConfig, check_share
from prunerecover.shared_budget.planner import SharedBudgetPlanner
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
        budget: A share of the MACs, parameters or latency of the model once it is merged. Latency is measured again
            once all is planned; a plan that misses it is made anew for more, and a warning says if it still does.
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
    check_share(budget)
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
    cost, _ = check_share(budget)
    with progress("planning depth and width"):
        return BudgetSearch(SharedBudgetPlanner(session, cost, config), budget, evaluate).run()


@dataclass(frozen=True)
class Candidate:
    """A plan that is compared with others.

    Attributes:
        plan: The plan.
        saved: Share of the cost that goes with it.
        divergence: Of the output on held-out samples; None: it cannot be compared, or nothing has to be.
        warnings: What planning warned of.
    """

    plan: Plan
    saved: float
    divergence: float | None
    warnings: tuple[Warning | str, ...] = ()


class BudgetSearch:
    """Plans one budget: depth and width together, or one of both alone.

    Args:
        planner: Of the budget's cost.
        budget: A share of it.
        evaluate: See `plan_pruning`; None: plans are compared by their outputs.

    Attributes:
        tried: What was tried, in order.
        candidates: Plans, by the share of the budget that depth takes.
    """

    def __init__(self, planner: SharedBudgetPlanner, budget: Budget, evaluate: Evaluate | None = None) -> None:
        self.planner, self.budget, self.evaluate = planner, budget, evaluate
        self.cost, self.wanted = check_share(budget)
        self.tried: list[TriedSplit] = []
        self.candidates: dict[float, Candidate] = {}

    def run(self) -> Plan:
        """Return the best plan.

        Raises:
            ValueError: If there is none, or labels are missing.
        """
        if not self.wanted:
            return Plan()
        planner = self.planner
        planner.score_width()
        if planner.why_no_depth or planner.why_no_width:
            self._try(lambda: self._alone(depth=bool(planner.why_no_width)), WIDTH if planner.why_no_depth else DEPTH)
        else:
            if planner.has_library:
                self._try(self._together, refusals=(Refusal, NotRemovable))
            if not self.candidates or self.evaluate is not None or planner.is_reconstructed:
                for share in (WIDTH, DEPTH):
                    self._try(partial(self._alone, depth=share == DEPTH), share)
            self._recover()
        best = self._best()
        for message in self.candidates[best].warnings:
            warnings.warn(message, stacklevel=4)
        return self._described(best, self.candidates[best])

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
        self.tried.append(TriedSplit(depth=share, divergence=divergence, saved=found.saved))
        self.candidates[share] = found

    def _together(self) -> Candidate:
        """Return the plan of depth and width together, made anew while it is measured to miss the budget."""
        planner, timed = self.planner, self.cost == "latency"
        states: list[State] = []

        def together(times: float) -> State:
            need = {self.cost: times * self.wanted}
            states.append(planner.together(need, 1, states[-1]) if states else planner.together(need))
            return states[-1]

        least = Wanted(self.wanted, CLOCKS if timed else MISSED, 2 * CLOCKS if timed else math.inf)
        state, saved = met_share(
            {self.cost: least},
            together,
            lambda state: {self.cost: planner.removed_share(planner.edits(state.chosen))},
        )
        plan = planner.plan(*planner.finished(state))
        divergence = planner.divergence(plan) if planner.is_reconstructed else state.divergence
        return Candidate(plan, saved[self.cost], divergence)

    def _alone(self, *, depth: bool) -> Candidate:
        """Return the plan of depth or of width alone, made anew while it is measured to miss the budget."""
        planner, timed = self.planner, self.cost == "latency"
        plan, saved = met_share(
            {self.cost: Wanted(self.wanted, CLOCKS, CLOCKS + STEP if timed else math.inf)},
            lambda times: planner.alone(depth, times * self.wanted),
            lambda plan: {self.cost: planner.removed_share(plan.edits)},
        )
        lonely = planner.why_no_depth or planner.why_no_width
        return Candidate(
            plan, saved[self.cost], None if lonely or self.evaluate is not None else planner.divergence(plan)
        )

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
        tried = SplitEvidence(splits=tuple(self.tried), depth_share=share, saved=found.saved)
        evidence = {**plan.evidence, **tried.to_dict()}
        part = DepthEvidence.of(evidence).removed_share
        if part is not None and self.cost == "latency":  # of the MACs that depth alone took
            del evidence["removed_share"]
        elif part is not None:
            live = self.planner.session.cost(self.cost).live_share(plan.edits)
            whole = part.model_copy(update={"live": live, "merged": found.saved, "asked": self.wanted})
            evidence |= DepthEvidence(removed_share=whole).to_dict()
        return plan.model_copy(update={"made_by": made_by, "evidence": evidence}).with_tensors(plan.tensors)


def _behind(split: TriedSplit) -> float:
    """Return what the best split has least of: lost accuracy where it was recovered, else divergence."""
    if split.accuracy is not None:
        return -split.accuracy
    return math.inf if split.divergence is None else split.divergence
