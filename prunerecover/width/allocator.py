"""Allocations of budgets in width, by named rules: groups, costs and scores of one model are found once.

The default removes by gate-Taylor per cost, the best rule in our measurements; relative weights of the kinds of units
are tried (`kind_weights`), and channels of networks with BatchNorm go in the order of `channel_order`.
`allocation="fair_pruner"` is FAIR-Pruner (arXiv 2508.02291) by the book, on scores taken in evaluation mode and on
whole dependency groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prunerecover.display.progress import progress
from prunerecover.importance.context import Importance, WidthContext
from prunerecover.importance.measuring.drawn import usual_loss
from prunerecover.importance.measuring.names import name_of
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.importance.registry import compute_importances
from prunerecover.importance.saved_scores import SavedScores
from prunerecover.model.evaluation import ordinary_arithmetic
from prunerecover.model.narrow.freeing import with_free_heads
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Edit
from prunerecover.plan.evidence import WidthEvidence
from prunerecover.plan.kinds import TRAITS
from prunerecover.plan.plan import Plan
from prunerecover.session.removed_share import measured_share, share_evidence
from prunerecover.session.session import Session
from prunerecover.store.search_store import SearchStore
from prunerecover.surgery.provenance import plan_for
from prunerecover.width.allocation.by_importance import lowest, per_cost, removal_positions
from prunerecover.width.allocation.equal_layers import equalised, warn_of_more
from prunerecover.width.allocation.greedy_fill import RemovalTarget, Removed
from prunerecover.width.allocation.kind_weights import KindWeights, best_kind_weights, number_of_trials, weighted
from prunerecover.width.allocation.latency_budget import met_latency
from prunerecover.width.allocation.measured_share import Shares, meet_measured, warn_if_inputs_decide
from prunerecover.width.allocation.tolerance_allocation import tolerance_allocation, tolerance_evidence
from prunerecover.width.arguments import WidthConfig, WidthRule
from prunerecover.width.channel_order import dealt_anew
from prunerecover.width.groups.rounding import rounded
from prunerecover.width.narrowable import NarrowableNetwork
from prunerecover.width.needed_experts import warn_of_needed_experts

NEAR = 0.03  # difference in cost between a plan and its correction


class WidthAllocator:
    """Allocations of several budgets among the groups of one model, with shared results computed once.

    Args:
        session: Network and samples.
        config: Further arguments of `plan_width`.
        store: Store of the search, for scores; None: no results are kept.

    Attributes:
        session: Network and samples.
        network: Network to narrow, with groups and costs.
        groups: Groups that may be narrowed, in order of depth.
        costs: Cost of every unit.
        units: Number of units of each kind.
    """

    @ordinary_arithmetic()
    def __init__(self, session: Session, config: WidthConfig | None = None, store: SearchStore | None = None) -> None:
        self.session, self.config, self.store = session, config or WidthConfig(), store or SearchStore()
        self.network = NarrowableNetwork(session, self.config)
        self.groups, self.costs, self.units = self.network.groups, self.network.costs, self.network.units
        self._scores: dict[str | int, tuple[str | Importance, Scores]] = {}
        self._weighed: list[tuple[WidthRule, str, float, KindWeights]] = []  # rule, cost and share

    @ordinary_arithmetic()
    def scores(self, *importances: str | Importance) -> tuple[Scores, ...]:
        """Return the scores by importances; unknown scores are read, or computed together in one pass over the batches.

        Args:
            importances: Names or callables, each called once.
        """
        wanted = {_key(one): one for one in importances}
        missing = {key: one for key, one in wanted.items() if key not in self._scores}
        session, saved = self.session, self.config.scores
        if missing and isinstance(saved, SavedScores):
            groups = [group.name for group in self.groups]
            for key, one in missing.items():
                self._scores[key] = one, saved.of_units(session.model, name_of(one), groups)
        elif missing:
            context = WidthContext(
                model=session.model,
                groups=self.network.groups_as_they_are,
                batches=session.batches,
                loss=session.loss or usual_loss(session.model, session.example, session.batches[0], self.config.seed),
                labels=self.config.labels,
                seed=session.seed,
            )
            asked = list(missing.values())
            with with_free_heads(session.model, self.network.attentions):
                names = [[name_of(one) for one in asked]]
                (found,) = self.store.results("importance", names, lambda _: list(compute_importances(context, asked)))
            self._scores |= dict(zip(missing, zip(asked, found, strict=True), strict=True))
        return tuple(self._scores[key][1] for key in map(_key, importances))

    def ranking(self, rule: WidthRule | None = None) -> Scores:
        """Return the scores of a rule's last importance, of channels by default in the order of `channel_order`.

        Args:
            rule: Rule for the choice of units; None: the planner's `config`.
        """
        rule = rule or self.config
        *_, scores = self.scores(*rule.importances)
        return dealt_anew(scores, self.network.channel_orders) if rule.by_default else scores

    def plan(self, budget: Budget | None = None, rule: WidthRule | None = None) -> Plan:
        """Return the plan of one budget; see `plan_width`.

        Args:
            budget: Budget in shares or units; None: the rule has a tolerance.
            rule: Rule of the choice and the treatment of readers; None: the planner's `config`.
        """
        plan = self.decided(budget, rule)
        with ordinary_arithmetic():
            return self.network.finished(plan, (rule or self.config).replace) if plan.edits else plan

    @ordinary_arithmetic()
    def decided(self, budget: Budget | None = None, rule: WidthRule | None = None) -> Plan:
        """Return a plan with weights refitted by least squares on the calibration samples, held-out samples excluded.

        Args:
            budget: Budget, as in `plan`.
            rule: Rule, as in `plan`.
        """
        rule = self.config if rule is None else rule
        rule.check_budget(budget, sorted(self.units))
        weighing = self._weighing(budget, rule)
        if budget is not None and budget.latency is not None:
            asked = budget.shares
            rule, in_macs = self._in_macs(asked["latency"], rule, weighing)
            removed, evidence = self._removed(in_macs, rule, weighing)
            narrowed = self.network.edits(removed)
            saved = measured_share(self.session, self.store, "latency", narrowed)
            evidence |= share_evidence(self.session, narrowed, asked, {"latency": saved})
        else:
            removed, evidence = self._measured(budget, rule, weighing)
        if rule.gates or self.config.scores is None:
            warn_of_needed_experts(self.groups, removed, "gate_taylor" if rule.gates else "routing", self.scores)
        found = WidthEvidence(
            kept={g.name: (g.size - len(removed[g.name]), g.size) for g in self.groups},
            kinds={g.name: g.kind for g in self.groups},
        )
        edits, fitted = self.network.compensated(self.network.edits(removed), rule.replace)
        ranked_by = [*map(name_of, rule.importances)]
        return plan_for(
            self.session.model,
            edits,
            method=f"width/{rule.allocated_by.name}",
            arguments={
                "budget": None if budget is None else budget.to_dict(),
                "importance": ranked_by if rule.by_tolerance else ranked_by[0],
                **({"channel_order": "made good"} if rule.by_default and self.network.channel_orders else {}),
                "tolerance": rule.tolerance,
                "replace": rule.replace,
                **({"equal_layers": True} if rule.equal_layers else {}),
                **({} if rule.round_to is None else {"round_to": rule.round_to}),
            },
            seed=self.config.seed,
            tensors=fitted,
            example=self.session.example,
            evidence={**found.to_dict(), **evidence},
        )

    def _measured(
        self, budget: Budget | None, rule: WidthRule, weighing: KindWeights
    ) -> tuple[Removed, dict[str, Any]]:
        """Return the removed units, corrected if the narrowed model really saves another share than requested."""
        if budget is None or budget.share is None:
            found = self._removed(budget, rule, weighing)
            if budget is not None and budget.in_units:
                warn_of_more(RemovalTarget.of(budget, self.groups, self.costs), found[0])
            return found
        cost, wanted = budget.share

        def removed_at(share: float) -> tuple[Removed, dict[str, Any]]:
            asked: dict[str, Any] = {cost: share}
            return self._removed(Budget(**asked), rule, weighing)

        def shares_of(found: tuple[Removed, dict[str, Any]]) -> Shares:
            return self.network.shares(cost, found[0], rule)

        (removed, evidence), saved = meet_measured(cost, wanted, removed_at, shares_of)
        if cost == "macs":
            warn_if_inputs_decide(*self.network.macs_saved(removed, rule.replace))
        share = share_evidence(self.session, self.network.edits(removed), {cost: wanted}, {cost: saved})
        return removed, {**evidence, **share}

    def _removed(self, budget: Budget | None, rule: WidthRule, weighing: KindWeights) -> tuple[Removed, dict[str, Any]]:
        groups, evidence = rounded(self.groups, rule.round_to), dict[str, Any]()
        if rule.by_tolerance:
            low, high = self.scores(*rule.importances)
            costs = self.costs if budget else None
            found = tolerance_allocation(groups, low, high, tolerance=rule.tolerance, budget=budget, costs=costs)
            removed, evidence = found.removed, tolerance_evidence(groups, low, high, found, self.costs)
            scores = removal_positions(groups, low)
        else:
            assert budget is not None, "only tolerances go without"
            scores = self.ranking(rule)
            if weighing.rates:
                scores = weighted(groups, scores, weighing.rates)
                removed = per_cost(groups, scores, self.costs, budget, damping=weighing.damping)
                evidence = WidthEvidence(rates=dict(weighing.rates), damping=weighing.damping).to_dict()
            else:
                removed = rule.allocated_by(groups, scores, self.costs, budget)
        if rule.equal_layers:
            removed = lowest(groups, scores, equalised(groups, removed, self.costs, budget))
        return removed, evidence

    def _weighing(self, budget: Budget | None, rule: WidthRule) -> KindWeights:
        """Return the weights of the kinds; equal unless heads, experts or hidden features compete with other kinds.

        For a share of the latency, weights are tried at an equal share of the MACs, if so many can go. Shares near an
        earlier share use the earlier weights.
        """
        plain = KindWeights()
        if rule.allocated_by.rule is not per_cost or budget is None or budget.share is None:
            return plain
        cost, share = budget.share
        kinds = [kind for kind in self.units if kind != "expert" or cost == "params"]  # experts save no MACs
        if len(kinds) < 2 or not any(TRAITS[kind].weighed for kind in kinds) or not self.session.output.comparable:
            return plain
        for other, of, at, weighing in self._weighed:
            if (other, of) == (rule, cost) and abs(at - share) <= NEAR:
                return weighing
        if cost == "latency":
            budget = Budget(macs=share)
            try:
                self._edits_at(budget, rule, plain)
            except ValueError:
                return plain
        kinds.sort(key=self.units.__getitem__, reverse=True)
        with progress("weighing kinds", number_of_trials(kinds)) as advance:

            def divergence_at(weighing: KindWeights) -> float:
                advance()
                return self.session.output.divergence(
                    *self.network.compensated(self._edits_at(budget, rule, weighing), rule.replace)
                )

            found = best_kind_weights(kinds, divergence_at)
        self._weighed.append((rule, cost, share, found))
        return found

    def _in_macs(self, latency: float, rule: WidthRule, weighing: KindWeights) -> tuple[WidthRule, Budget]:
        """Return the budget of MACs for a share of the latency, and the rule with or without rounding of widths."""
        scores = self.ranking(rule)  # before errors mean that structure forbids a budget
        scores = weighted(self.groups, scores, weighing.rates)

        def choose(way: WidthRule, budget: Budget) -> tuple[Sequence[Edit], float]:
            removed, _ = self._removed(budget, way, weighing)
            return self.network.edits(removed), sum(float(scores[name][gone].sum()) for name, gone in removed.items())

        ways = [way for way in rule.ways if way is rule or rounded(self.groups, way.round_to) != self.groups]
        met = met_latency(self.session.cost("latency"), latency, ways, choose)
        return met.way, met.budget

    def _edits_at(self, budget: Budget, rule: WidthRule, weighing: KindWeights) -> tuple[Edit, ...]:
        return self.network.edits(self._removed(budget, rule, weighing)[0])


def _key(importance: str | Importance) -> str | int:
    """Return the key of scores: names, and the identity of callables, since two callables may share a name."""
    return importance if isinstance(importance, str) else id(importance)
