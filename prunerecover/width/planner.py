"""Plan several budgets in width for one model: groups, costs and signals are found once.

The default removes by gate-Taylor per cost, which we measured best; what units of one kind count for beside those of
another is tried (`kind_weights`). `allocation="tolerance"` is FAIR-Pruner (arXiv 2508.02291) by the book, on
scores that are taken in evaluation mode and on whole dependency groups.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.calibration.moments import Moments
from prunerecover.cost.macs import count_macs
from prunerecover.display.progress import progress
from prunerecover.importance.losses import supervised_loss
from prunerecover.importance.registry import name_of
from prunerecover.model.batches import Batches, ModelInputs, as_inputs, with_samples, without_labels
from prunerecover.model.checks import check_differentiable, check_plannable
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import device_of, ordinary_arithmetic
from prunerecover.model.paths import unwrap
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Edit, Narrow, Rewrite
from prunerecover.plan.evidence import WidthEvidence
from prunerecover.plan.groups import Group
from prunerecover.plan.kinds import TRAITS
from prunerecover.plan.plan import Plan
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.provenance import plan_for
from prunerecover.width.allocation.by_saliency import lowest, per_cost
from prunerecover.width.allocation.cost_model import CostModel, cost_model
from prunerecover.width.allocation.diagnostics import tolerance_evidence
from prunerecover.width.allocation.equal_layers import alike, equalised
from prunerecover.width.allocation.greedy_fill import Removed
from prunerecover.width.allocation.kind_weights import (
    KindWeights,
    best_kind_weights,
    number_of_trials,
    weighted,
)
from prunerecover.width.allocation.latency_budget import macs_for_latency
from prunerecover.width.allocation.measured_share import Shares, meet_measured
from prunerecover.width.allocation.tolerance_allocation import tolerance_allocation
from prunerecover.width.arguments import WidthConfig, WidthReplace, WidthRule
from prunerecover.width.compensation import Reader, moments_of, predictions, readers_of, with_compensation
from prunerecover.width.groups.discovery import find_groups
from prunerecover.width.groups.gates import with_a_gate
from prunerecover.width.groups.unit_slices import Scores, removal_positions
from prunerecover.width.narrow_edits import narrow_edits
from prunerecover.width.narrowed_output import NarrowedOutput
from prunerecover.width.signals.context import WidthContext, WidthImportance
from prunerecover.width.signals.registry import compute_signals


class WidthPlanner:
    """Plans several budgets for one model, and computes once what they share.

    The model must have the same weights at every `plan`.

    Args:
        model: See `plan_width`.
        batches: See `plan_width`.
        config: All other arguments of `plan_width`.

    Attributes:
        groups: What may be narrowed, in order of depth.
        costs: What every unit costs.
    """

    @ordinary_arithmetic()
    def __init__(self, model: nn.Module, *, batches: Batches, config: WidthConfig | None = None) -> None:
        self.model, self.config = unwrap(model), config or WidthConfig()
        check_plannable(self.model)
        check_differentiable(self.model)
        self.batches = with_samples(batches)
        self.example = self.first_batch().select(torch.tensor([0]))
        found = find_groups(self.model, self.example, self.config.kinds, self.config.ignore)
        self.groups: tuple[Group, ...] = with_a_gate(found.groups) if self.config.gates else found.groups
        self.rewrites: tuple[Rewrite, ...] = tuple(
            Rewrite(unit=s.path, in_channels=s.in_channels, out_channels=s.out_channels, stride=s.stride, first=s.first)
            for s in found.rewrites
        )
        rewritten = share_copy(self.model)
        apply_edits(rewritten, self.rewrites)
        self.costs: CostModel = cost_model(rewritten, self.groups, self.example)
        self._scores: dict[str | int, tuple[str | WidthImportance, Scores]] = {}

    @property
    def units(self) -> dict[str, int]:
        """How many units of each kind there are."""
        counts: Counter[str] = Counter()
        for group in self.groups:
            counts[group.kind] += group.size
        return dict(counts)

    def first_batch(self) -> ModelInputs:
        """Return the first batch, on the model's device: what latency is measured on."""
        return self._inputs(self.batches[0])

    def _inputs(self, batch: Any) -> ModelInputs:
        return as_inputs(without_labels(batch, self.model)).to(device_of(self.model))

    @ordinary_arithmetic()
    def scores(self, *signals: str | WidthImportance) -> tuple[Scores, ...]:
        """Return signals; those that are not known yet are computed together, in one pass over the batches.

        Args:
            signals: Names, or callables, each of which is called once.
        """
        wanted = {_key(signal): signal for signal in signals}
        missing = {key: signal for key, signal in wanted.items() if key not in self._scores}
        if missing:
            context = WidthContext(
                model=self.model,
                groups=self._as_it_is(),
                batches=self.batches,
                loss=self.config.loss or supervised_loss,
                labels=self.config.labels,
                seed=self.config.seed,
            )
            found = compute_signals(context, list(missing.values()))
            self._scores |= dict(zip(missing, zip(missing.values(), found, strict=True), strict=True))
        return tuple(self._scores[key][1] for key in map(_key, signals))

    def _as_it_is(self) -> list[Group]:
        """Return the groups without the weights that rewritten shortcuts are yet to get."""
        rewritten = tuple(f"{edit.unit}." for edit in self.rewrites)
        return [
            dataclasses.replace(
                group, slices=tuple(part for part in group.slices if not part.tensor.startswith(rewritten))
            )
            for group in self.groups
        ]

    @ordinary_arithmetic()
    def plan(self, budget: Budget | None = None, rule: WidthRule | None = None) -> Plan:
        """Return the plan of one budget; see `plan_width`.

        Args:
            budget: None: the rule has a tolerance.
            rule: How units are chosen, and what they leave; None: as the planner's `config` says.
        """
        rule = self.config if rule is None else rule
        rule.check_budget(budget, sorted(self.units))
        weighing = self._weighing(budget, rule)
        removed, evidence = self._measured(budget, rule, weighing)
        found = WidthEvidence(
            kept={g.name: (g.size - len(removed[g.name]), g.size) for g in self.groups},
            kinds={g.name: g.kind for g in self.groups},
        )
        edits, tensors = self._compensated(self._edits(removed), rule.replace)
        removal, protection = [None, *map(name_of, rule.signals)][-2:]
        return plan_for(
            self.model,
            edits,
            method=f"width/{rule.allocated_by.name}",
            arguments={
                "budget": None if budget is None else budget.to_dict(),
                "removal": removal,
                "protection": protection,
                "tolerance": rule.tolerance,
                "replace": rule.replace,
                **({"equal_layers": True} if rule.equal_layers else {}),
            },
            seed=self.config.seed,
            tensors=tensors,
            example=self.example,
            evidence={**found.to_dict(), **evidence},
        )

    def _measured(
        self, budget: Budget | None, rule: WidthRule, weighing: KindWeights
    ) -> tuple[Removed, dict[str, Any]]:
        """Return what goes, asked for again where the model that is really narrowed saves another share."""
        if budget is None or budget.share is None or budget.share[0] == "latency":
            return self._removed(self._in_macs(budget, rule, weighing), rule, weighing)
        cost, wanted = budget.share

        def removed_at(share: float) -> tuple[Removed, dict[str, Any]]:
            asked: dict[str, Any] = {cost: share}
            return self._removed(Budget(**asked), rule, weighing)

        return meet_measured(cost, wanted, removed_at, lambda found: self._shares(cost, found[0], rule))

    def _shares(self, cost: str, removed: Removed, rule: WidthRule) -> Shares:
        """Return what an allocation saves of the MACs or parameters."""
        network, full = share_copy(self.model), getattr(self.costs.full, cost)
        apply_edits(network, self._edits(removed))
        if cost == "macs":
            left = count_macs(network, self.example)
        else:
            left = sum(parameter.numel() for parameter in network.parameters())
        gone = {name: len(units) for name, units in removed.items()}
        predicted = self.costs.total({name: self.costs.sizes[name] - count for name, count in gone.items()})
        together = alike(self.groups) if rule.evenly else [(group,) for group in self.groups]
        units = [
            sum(getattr(self.costs.saving(group.name, gone, group.multiple), cost) for group in groups)
            for groups in together
            if all(group.size - gone[group.name] > max(group.at_least, group.multiple) for group in groups)
        ]
        return Shares(
            predicted=1 - getattr(predicted, cost) / full,
            measured=1 - left / full,
            unit=min((saved for saved in units if saved), default=full) / full,
        )

    def _removed(self, budget: Budget | None, rule: WidthRule, weighing: KindWeights) -> tuple[Removed, dict[str, Any]]:
        if not rule.by_tolerance:
            assert budget is not None, "only tolerances go without"
            (saliency,) = self.scores(*rule.signals)
            if not weighing.rates:
                removed = rule.allocated_by(self.groups, saliency, self.costs, budget)
                return self._equalised(removed, saliency, budget, rule), {}
            saliency = weighted(self.groups, saliency, weighing.rates)
            removed = per_cost(self.groups, saliency, self.costs, budget, damping=weighing.damping)
            tried = WidthEvidence(rates=dict(weighing.rates), damping=weighing.damping)
            return self._equalised(removed, saliency, budget, rule), tried.to_dict()
        low, high = self.scores(*rule.signals)
        found = tolerance_allocation(
            self.groups, low, high, tolerance=rule.tolerance, budget=budget, costs=self.costs if budget else None
        )
        evidence = tolerance_evidence(self.groups, low, high, found, self.costs)
        return self._equalised(found.removed, removal_positions(self.groups, low), budget, rule), evidence

    def _equalised(self, removed: Removed, saliency: Scores, budget: Budget | None, rule: WidthRule) -> Removed:
        if not rule.equal_layers:
            return removed
        return lowest(self.groups, saliency, equalised(self.groups, removed, self.costs, budget))

    def _weighing(self, budget: Budget | None, rule: WidthRule) -> KindWeights:
        """Return how saliencies count; as they are unless heads or experts may go beside others.

        For a share of the latency it is tried at as large a share of the MACs, if so many can go.
        """
        plain = KindWeights()
        if rule.allocated_by.rule is not per_cost or budget is None or budget.share is None:
            return plain
        cost, share = budget.share
        kinds = [kind for kind in self.units if kind != "expert" or cost == "params"]  # experts save no MACs
        if len(kinds) < 2 or not any(TRAITS[kind].composite for kind in kinds) or not self._narrowed_output.comparable:
            return plain
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
                return self._narrowed_output.divergence(
                    *self._compensated(self._edits_at(budget, rule, weighing), rule.replace)
                )

            return best_kind_weights(kinds, divergence_at)

    def _in_macs(self, budget: Budget | None, rule: WidthRule, weighing: KindWeights) -> Budget | None:
        """Return the budget of MACs whose plan saves the latency that a budget asks for; other budgets as they are."""
        if budget is None or budget.share is None or budget.share[0] != "latency":
            return budget
        self.scores(*rule.signals)  # before errors mean that structure forbids a budget
        edits_at = partial(self._edits_at, rule=rule, weighing=weighing)
        return macs_for_latency(self.model, budget.share[1], edits_at, self.first_batch(), self.config.seed)

    def _edits_at(self, budget: Budget, rule: WidthRule, weighing: KindWeights) -> tuple[Edit, ...]:
        return self._edits(self._removed(budget, rule, weighing)[0])

    def _edits(self, removed: Removed) -> tuple[Edit, ...]:
        narrowed = narrow_edits(self.groups, removed)
        return (*self.rewrites, *narrowed) if narrowed else ()

    def _compensated(self, edits: Sequence[Edit], replace: WidthReplace) -> tuple[list[Edit], dict[str, Tensor]]:
        """Return the edits with what reading weights take over."""
        narrowing = [edit for edit in edits if isinstance(edit, Narrow)]
        if replace == "zero" or not narrowing:
            return list(edits), {}
        return with_compensation(edits, predictions(narrowing, self._moments))

    @cached_property
    def _moments(self) -> dict[Reader, Moments]:
        """Of all that reads groups; they take the square of a group's entries in memory for as long as the planner."""
        return moments_of(self.model, readers_of(self.groups), [self._inputs(batch) for batch in self.batches])

    @cached_property
    def _narrowed_output(self) -> NarrowedOutput:
        return NarrowedOutput(self.model, [self._inputs(batch) for batch in self.batches])


def _key(signal: str | WidthImportance) -> str | int:
    """Return what scores are kept by: names, and the identity of callables, two of which may share a name."""
    return signal if isinstance(signal, str) else id(signal)
