"""Plan which blocks, attentions, MLPs and activations to remove, and what they leave."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch

import torch
from torch import nn

from prunerecover.calibration.calibrator import Calibrator
from prunerecover.depth.arguments import DepthConfig, check_ignore, listed
from prunerecover.depth.search import SearchCache, edits_of, greedy, one_shot, saving_if_zeroed
from prunerecover.depth.units import find_units
from prunerecover.importance.context import DepthContext
from prunerecover.model.batches import Batches, ModelInputs, as_inputs, split_batches
from prunerecover.model.checks import check_blocks_apart, check_plannable
from prunerecover.model.evaluation import device_of, evaluating, ordinary_arithmetic, uncompiled
from prunerecover.model.paths import unwrap
from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import DepthEvidence
from prunerecover.plan.kinds import DEPTH_KINDS
from prunerecover.plan.plan import Plan
from prunerecover.surgery.provenance import plan_for
from prunerecover.surgery.saved_cost import removed_share


class DepthPlanner:
    """Plans several budgets for one model, and computes once what they share.

    The model must have the same weights at every `plan`.

    Args:
        model: See `plan_depth`.
        kinds: Kinds of the units that may go.
        batches: See `plan_depth`.
        config: All other arguments of `plan_depth`.

    Attributes:
        units: What may go, in order of depth.
    """

    def __init__(
        self,
        model: nn.Module,
        kinds: Sequence[str] = DEPTH_KINDS,
        *,
        batches: Batches,
        config: DepthConfig | None = None,
    ) -> None:
        self.model, self.config = unwrap(model), config or DepthConfig()
        self.config.check_ready(kinds)
        check_plannable(self.model)
        check_blocks_apart(self.model)
        self.batches = listed(batches)
        with ordinary_arithmetic(), evaluating(self.model), uncompiled():
            self.samples = split_batches(self.batches, device_of(self.model), self.config.seed)
            self.example = self.samples.held_out[0].select(torch.tensor([0]))
            found = find_units(self.model, [k for k in DEPTH_KINDS if k in kinds], self.example)
            check_ignore(self.config.ignore, find_units(self.model))
            self.units = tuple(u for u in found if not any(fnmatch(u.name, pattern) for pattern in self.config.ignore))
            self.calibrator = Calibrator(self.model, self.samples, self.units, self.config.replace, self.config.seed)
        self._cache = SearchCache()
        self._scores: dict[str, float] | None = None

    def plan(self, budget: Budget) -> Plan:
        """Return the plan of one budget; see `plan_depth`."""
        search = self._search_for(budget)
        units = [u for u in self.units if u.kind in budget.kinds(DEPTH_KINDS)]
        with ordinary_arithmetic(), evaluating(self.model), uncompiled():
            if search == "greedy":
                scores, chosen = greedy(self.calibrator, units, budget, self._cache)
            else:
                scores = self.rank()
                timed = self._example_for(budget.share[0] if budget.share else None)
                chosen = one_shot(self.calibrator, units, scores, budget, self.config.registered, timed)
            edits, tensors = edits_of(self.model, ((c.unit, c.candidate) for c in chosen))
        arguments = {
            "budget": budget.to_dict(),
            "replace": self.config.replace,
            "search": search,
            "ignore": list(self.config.ignore),
        }
        return plan_for(
            self.model,
            edits,
            method=f"depth/{self.config.registered.name}",
            arguments=arguments,
            seed=self.config.seed,
            tensors=tensors,
            example=self.example,
            evidence=DepthEvidence(
                importance=scores,
                samples=self.samples.n_samples,
                divergence={choice.unit.name: choice.divergence for choice in chosen},
            ).to_dict(),
        )

    def share_of_one(self, kind: str, cost: str) -> float:
        """Return the share of the model's cost that goes with one unit of a kind, merged: the mean over half of them.

        Args:
            kind: Of the units.
            cost: "macs", "params" or "latency", which is measured on the first batch.
        """
        units = [u for u in self.units if u.kind == kind][::2]
        with ordinary_arithmetic(), evaluating(self.model), uncompiled():
            return saving_if_zeroed(self.calibrator, cost, self._example_for(cost))(units) / len(units)

    def removed_share(self, plan: Plan, cost: str) -> float:
        """Return the share of the model's cost that goes with a plan, merged; `cost` as of `share_of_one`."""
        with ordinary_arithmetic(), evaluating(self.model), uncompiled():
            return removed_share(self.model, plan.edits, cost, self._example_for(cost), self.config.seed)

    def _example_for(self, cost: str | None) -> ModelInputs:
        return as_inputs(self.batches[0]).to(device_of(self.model)) if cost == "latency" else self.example

    def rank(self) -> dict[str, float]:
        """Return the importance of every unit as it is before anything goes; computed once."""
        if self._scores is None:
            context = DepthContext(
                model=self.model,
                units=self.units,
                batches=tuple(self.batches),
                loss=self.config.loss,
                replace=self.config.replace,
                seed=self.config.seed,
                shared_calibrator=self.calibrator,
            )
            with ordinary_arithmetic(), evaluating(self.model), uncompiled():
                self._scores = self.config.registered(context)
        return self._scores

    def _search_for(self, budget: Budget) -> str:
        importance = self.config.registered.name
        possible = importance == "output_divergence" and budget.share is None
        if self.config.search == "greedy" and not possible:
            raise ValueError(
                "Expected importance='output_divergence' and a budget in units (remove=... or ratio=...) for "
                f"search='greedy', but got '{importance}' and {budget.to_dict()}. Use search='one_shot'."
            )
        return self.config.search or ("greedy" if possible else "one_shot")
