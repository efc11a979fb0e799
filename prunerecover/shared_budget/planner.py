"""Planner of one budget over depth and width: a plan in depth for a part of it, and one in width for what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from prunerecover.cost.met_share import Wanted, met_share
from prunerecover.depth.plan_depth import planner_for
from prunerecover.depth.planner import DepthPlanner
from prunerecover.model.batches import (
    ModelInputs,
)
from prunerecover.model.copies import deep_copy
from prunerecover.model.evaluation import ordinary_arithmetic
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Edit, Narrow
from prunerecover.plan.plan import Plan
from prunerecover.recovery.reconstruction import fit_layers, made_for, reconstructible
from prunerecover.refusal import Refusal
from prunerecover.session.session import Session
from prunerecover.shared_budget.arguments import SharedBudgetConfig, budget_of
from prunerecover.shared_budget.ignored import patterns_of_depth, possible
from prunerecover.shared_budget.rest_in_width import RestInWidth
from prunerecover.surgery.saved_cost import CLOCKS
from prunerecover.width.allocation.latency_budget import STEP
from prunerecover.width.arguments import WidthConfig
from prunerecover.width.tuning import fitted_and_tuned

ONCE_MORE = 2  # plans of a split, the second one for what the first is measured to miss


class SharedBudgetPlanner:
    """Plans splits of budgets in one cost for one model, and computes once what they share.

    Args:
        session: Network and samples.
        cost: "macs", "params" or "latency".
        config: All other arguments of `plan_pruning`.

    Attributes:
        session: See above.
        why_no_depth: Why no unit of depth can go; empty if some can.
        why_no_width: Why no unit of width can go; empty if some can.
        counted: The cost that depth's part of a budget is planned in: MACs for a latency.
        depth_config: Of planning in depth.

    Raises:
        ValueError: If neither can go, or a pattern in `ignore` matches nothing.
    """

    def __init__(self, session: Session, cost: str, config: SharedBudgetConfig) -> None:
        self.session, self.cost, self.config = session, cost, config
        self.counted = "macs" if cost == "latency" else cost
        self._kinds = config.width_kinds(session.model, cost)
        ignored = patterns_of_depth(session.model, session.example, config, self._kinds)
        self.depth_config = config.depth(config.depth_kinds(), ignored)
        self._rest = RestInWidth(session, self._kinds, config)
        _, self.why_no_width = possible(self._rest.dense)
        self._depth, self.why_no_depth = possible(self._depth_planner)
        if self.why_no_depth and self.why_no_width:
            raise Refusal(
                f"{type(session.model).__name__} to have units of depth or width that may go",
                f"there are none. Depth: {self.why_no_depth} Width: {self.why_no_width}".removesuffix("."),
                "Follow what one of these says, or prune another part of the network.",
            )
        self._kinds_of_depth: tuple[str, ...] | None = None  # that went when depth took all of the budget
        self._shares: list[tuple[tuple[str, tuple[Edit, ...]], float]] = []
        self._together: list[tuple[tuple[Edit, ...], float, Plan]] = []  # by what goes in depth, and in all

    def score_width(self) -> None:
        """Score the units of width of the dense network, while errors do not mean yet that a budget cannot be met.

        Raises:
            ValueError: If labels are missing.
        """
        if not self.why_no_width:
            self._rest.score()

    def width_config(self) -> WidthConfig:
        """Return the arguments of planning in width alone."""
        return self._rest.config_after(Plan(), self.session)

    @ordinary_arithmetic()
    def alone(self, depth: bool, share: float) -> Plan:
        """Return the plan of depth or of width alone; see `finished`.

        Args:
            depth: Whether it is depth.
            share: Of the cost, that has to go.

        Raises:
            ValueError: If the network cannot be pruned so.
        """
        budget = budget_of(self.cost, share)
        return self._depth_plan(budget) if depth else self._rest.after(Plan(), budget)

    @ordinary_arithmetic()
    def together(self, depth_share: float, share: float) -> Plan:
        """Return the plan of a part in depth, and of the rest in width; see `finished`.

        Latency is measured on few samples in between, for narrow layers save less of it than of the MACs, and on the
        whole batch at the end: splits can only be compared where they save the same.

        Args:
            depth_share: Of the MACs (or parameters), that depth takes out.
            share: Of the cost, that has to go.

        Raises:
            ValueError: If the network cannot be pruned so.
        """
        if self._depth is None:
            raise ValueError(self.why_no_depth)
        first = self._depth.part(budget_of(self.counted, depth_share), self._kinds_of_depth)
        known = (whole for edits, asked, whole in self._together if edits == first.edits and asked == share)
        if (plan := next(known, None)) is None:
            plan = self._completed(first, share)
            self._together.append((first.edits, share, plan))
        return plan

    def _completed(self, first: Plan, share: float) -> Plan:
        """Return a plan in depth with one in width, made once more if both together are measured to miss a latency."""
        gone = self.session.cost(self.cost).on_few.removed_share(first.edits) if first.edits else 0.0
        least = CLOCKS if self.cost == "latency" else 0.0

        def completed(aim: float) -> Plan:
            left = (aim - gone) / (1 - gone)
            return self._rest.after(first, budget_of(self.cost, left)) if left > least else first

        if self.cost != "latency":
            return completed(share)
        plan, _ = met_share(
            {self.cost: Wanted(share, below=CLOCKS, above=CLOCKS + STEP)},
            lambda times: completed(times * share),
            lambda plan: {self.cost: self.removed_share(plan, self.cost)},
            tries=ONCE_MORE,
        )
        return plan

    def removed_share(self, plan: Plan, cost: str) -> float:
        """Return the share of a cost that goes with a plan, once it is merged; latency is measured.

        Args:
            plan: For the model.
            cost: "macs", "params" or "latency".
        """
        if not plan.edits:
            return 0.0
        asked = (cost, plan.edits)  # settings in edits have no hash
        share = next((share for other, share in self._shares if other == asked), None)
        if share is None:
            share = self.session.cost(cost).removed_share(plan.edits)
            self._shares.append((asked, share))
        return share

    @ordinary_arithmetic()
    def finished(self, plan: Plan) -> Plan:
        """Return a plan with what narrowed weights take over fitted to all samples, and tuned towards the dense output.

        Plans in depth are finished already.
        """
        return plan.with_tensors(self._fitted(plan, self.session.samples.whole))

    @ordinary_arithmetic()
    def divergence(self, plan: Plan) -> float | None:
        """Return the output divergence on held-out samples; None: it cannot be compared.

        For it, as at the end, what narrowed weights take over is fitted to the other samples, and a network with
        BatchNorm is reconstructed on them if that brings it nearer: splits gain by it differently.
        """
        output, fit = self.session.output, self.session.samples.fit
        if not output.comparable:
            return None
        network = output.pruned(plan.edits, self._fitted(plan, fit))
        found = output.divergence_of(network)
        if not (made_for(network) and reconstructible(plan)):
            return found
        network = deep_copy(network)  # which may share weights with the model
        fit_layers(network, self.session.model, plan, fit, seed=self.session.seed)
        return min(found, output.divergence_of(network))

    def _fitted(self, plan: Plan, batches: Sequence[ModelInputs]) -> Mapping[str, Tensor]:
        if not any(isinstance(edit, Narrow) and edit.tensors for edit in plan.edits):
            return plan.tensors
        return fitted_and_tuned(plan.edits, plan.tensors, batches, self.session.output)

    def _depth_plan(self, budget: Budget) -> Plan:
        if self._depth is None:
            raise ValueError(self.why_no_depth)
        plan = self._depth.plan(budget)
        self._kinds_of_depth = tuple(plan.removed) or None
        return plan

    def _depth_planner(self) -> DepthPlanner:
        if self.depth_config.kinds == ():
            raise ValueError(f"Expected kinds of depth, but got kinds={self.config.kinds}.")
        return planner_for(self.session, budget_of(self.cost, 0.0), self.depth_config)
