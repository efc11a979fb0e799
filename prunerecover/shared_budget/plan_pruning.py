"""Plan depth and width together for one budget: which splits are tried, and which of them is planned."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

from torch import nn

from prunerecover.boundary.search import Evaluate, Trial, accuracies_of
from prunerecover.cost.met_share import MOST, BudgetMissed, Wanted, met_share
from prunerecover.display.progress import beside_other_displays, progress
from prunerecover.divergence.registry import Divergence, comparing_by
from prunerecover.importance.measuring.losses import Loss
from prunerecover.model.batches import Batches
from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import DepthEvidence, SplitEvidence, TriedSplit
from prunerecover.plan.plan import Plan
from prunerecover.session.session import Session
from prunerecover.shared_budget.arguments import SharedBudgetConfig, check_share
from prunerecover.shared_budget.planner import SharedBudgetPlanner
from prunerecover.surgery.saved_cost import CLOCKS
from prunerecover.width.allocation.latency_budget import STEP
from prunerecover.width.groups.rounding import RoundTo

WIDTH, DEPTH = 0.0, 1.0  # shares of the budget that depth takes where one of both goes alone
HALF = 0.5
FINER = (0.25, 0.125)  # from the best of them, to the better side
NEAR = CLOCKS  # of the cost: widths meet a budget within so much as well
CLEARLY = CLOCKS + STEP  # of the latency: too much, which widths would not take out either


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

    Depth alone, width alone, and half of the budget by depth with the rest by width are planned, and two more between
    the best and its better neighbour; the plan whose output is nearest to the dense network's, on samples that
    nothing is fitted to so far, is returned; networks with BatchNorm are compared once they are reconstructed, as
    `Prune` leaves them. Where units of one of both cannot go at all, the other takes the budget.
    With `evaluate`, splits are recovered for a short while instead, and the most accurate one is returned.

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
        return SplitSearch(SharedBudgetPlanner(session, cost, config), budget, evaluate).run()


class SplitSearch:
    """Tries splits of one budget and plans the best.

    Args:
        planner: Of the budget's cost.
        budget: A share of it.
        evaluate: See `plan_pruning`; None: splits are compared by their outputs.

    Attributes:
        tried: In order.
        plans: By the share of the budget that depth takes.
    """

    def __init__(self, planner: SharedBudgetPlanner, budget: Budget, evaluate: Evaluate | None = None) -> None:
        self.planner, self.budget, self.evaluate = planner, budget, evaluate
        self.cost, self.wanted = check_share(budget)
        self.tried: list[TriedSplit] = []
        self.plans: dict[float, Plan] = {}
        self._warnings: dict[float, list[Warning | str]] = {}
        self._reach = self.wanted  # of the MACs (or parameters) in depth alone, to save what is wanted of the cost

    def run(self) -> Plan:
        """Return the plan of the best split.

        Raises:
            ValueError: If no split can be planned, or labels are missing.
        """
        if not self.wanted:
            return Plan()
        self.planner.score_width()
        if self.planner.why_no_depth or self.planner.why_no_width:
            self._try(WIDTH if self.planner.why_no_depth else DEPTH)
        else:
            self._try_splits()
        best = self._best()
        for message in self._warnings[best]:
            warnings.warn(message, stacklevel=4)
        return self._described(best, *self._met(best))

    def _try_splits(self) -> None:
        with progress("trying splits", 3 + len(FINER)) as advance:
            for share in (WIDTH, DEPTH, HALF):
                self._try(share)
                if share == DEPTH:
                    self._learn_reach()
                advance()
            self._recover()
            for step in FINER:
                for share in self._nearer(step):
                    self._try(share)
                self._recover()
                advance()

    def _nearer(self, step: float) -> list[float]:
        """Return the split that is a step from the best one, on the side on which the next one is better."""
        behind = {one.depth: _behind(one) for one in self.tried if not one.refused}
        if not behind:
            return [HALF - step, HALF + step]
        best = self._best()
        sides = [best + way * step for way in (-1, 1) if WIDTH < best + way * step < DEPTH]

        def next_to(share: float) -> float:
            beyond = [one for one in behind if (one - best) * (share - best) > 0]
            return behind[min(beyond, key=lambda one: abs(one - best))] if beyond else math.inf

        return sorted(sides, key=next_to)[:1]

    def _learn_reach(self) -> None:
        """Note how many of the MACs depth alone takes out to save as much latency as is wanted."""
        if self.cost == "latency" and DEPTH in self.plans:
            macs, saved = (self.planner.removed_share(self.plans[DEPTH], cost) for cost in ("macs", "latency"))
            if macs > 0 and saved > 0:
                self._reach = min(macs * self.wanted / saved, MOST)

    def _try(self, share: float) -> None:
        """Plan a split, and compare its output if there are others."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                plan = self._planned(share, self.wanted)
            except ValueError as refusal:
                self.tried.append(TriedSplit(depth=share, refused=str(refusal)))
                return
        alone = self.planner.why_no_depth or self.planner.why_no_width
        compared = not alone and self.evaluate is None
        divergence = self._divergence(plan) if compared else None
        saved = self.planner.removed_share(plan, self.cost)
        self.tried.append(TriedSplit(depth=share, divergence=divergence, saved=saved))
        self.plans[share] = plan if self.evaluate is None else self.planner.finished(plan)
        self._warnings[share] = [warning.message for warning in caught]

    def _planned(self, share: float, aim: float) -> Plan:
        """Return the plan of a split that is to save a share of the cost; what its parts miss, `_met` measures."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BudgetMissed)
            if share in (WIDTH, DEPTH):
                return self.planner.alone(share == DEPTH, aim)
            return self.planner.together(min(share * self._reach * aim / self.wanted, MOST), aim)

    def _divergence(self, plan: Plan) -> float | None:
        same = next((share for share, other in self.plans.items() if other.edits == plan.edits), None)
        if same is not None:
            return next(one.divergence for one in self.tried if one.depth == same)
        found = self.planner.divergence(plan)
        return found if found is not None and math.isfinite(found) else None

    def _recover(self) -> None:
        """Learn the accuracies after a short recovery of the splits that were tried since the last time."""
        if self.evaluate is None:
            return
        new = [i for i, one in enumerate(self.tried) if not one.refused and one.accuracy is None]
        trials = [Trial(self.plans[self.tried[i].depth], self.planner.config.seed) for i in new]
        for i, accuracy in zip(new, accuracies_of(self.evaluate, trials), strict=True):
            self.tried[i] = self.tried[i].model_copy(update={"accuracy": float(accuracy)})

    def _best(self) -> float:
        able = sorted((one for one in self.tried if not one.refused), key=lambda one: one.depth)
        if not able:
            reasons = " ".join(dict.fromkeys(one.refused for one in self.tried))
            raise ValueError(
                f"Expected a budget that depth and width can meet, but {self.budget.to_dict()} is not one. {reasons}"
            )
        return min(able, key=_behind).depth

    def _met(self, share: float) -> tuple[Plan, float]:
        """Return the plan of a split and what it saves; made anew while it is measured to miss the budget."""
        if not self.plans[share].edits:
            return self.plans[share], 0.0
        above = CLEARLY if self.cost == "latency" else math.inf  # what is counted may exceed it by a unit
        plan, saved = met_share(
            {self.cost: Wanted(self.wanted, NEAR, above)},
            lambda times: self.plans[share] if times == 1 else self._planned(share, times * self.wanted),
            lambda plan: {self.cost: self.planner.removed_share(plan, self.cost)},
        )
        recovered = self.evaluate is not None and plan is self.plans[share]
        return (plan if recovered else self.planner.finished(plan)), saved[self.cost]

    def _described(self, share: float, plan: Plan, saved: float) -> Plan:
        """Return the plan as one for the whole budget."""
        if not plan.edits:
            return plan
        arguments = {"budget": self.budget.to_dict(), "depth_share": share, **self.planner.config.said()}
        made_by = plan.made_by.model_copy(update={"method": "joint", "arguments": arguments})
        found = SplitEvidence(splits=tuple(self.tried), depth_share=share, saved=saved)
        evidence = {**plan.evidence, **found.to_dict()}
        part = DepthEvidence.of(evidence).removed_share
        if part is not None and self.cost == "latency":  # of the MACs that depth alone took
            del evidence["removed_share"]
        elif part is not None:
            live = self.planner.session.cost(self.cost).live_share(plan.edits)
            whole = part.model_copy(update={"live": live, "merged": saved, "asked": self.wanted})
            evidence |= DepthEvidence(removed_share=whole).to_dict()
        return plan.model_copy(update={"made_by": made_by, "evidence": evidence}).with_tensors(plan.tensors)


def _behind(split: TriedSplit) -> float:
    """Return what the best split has least of: lost accuracy where it was recovered, else divergence."""
    if split.accuracy is not None:
        return -split.accuracy
    return math.inf if split.divergence is None else split.divergence
