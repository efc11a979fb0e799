"""Plan the depth of a model of a supported family: blocks, attentions, MLPs, activations, and what they leave."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn

from prunerecover.calibration.calibrator import Calibrator
from prunerecover.depth.arguments import DepthConfig, check_ignore
from prunerecover.depth.search import SearchCache, edits_of, greedy, one_shot, saving_if_left, smallest_share
from prunerecover.depth.units import find_units
from prunerecover.display.progress import progress
from prunerecover.families.describe import describe
from prunerecover.importance.context import DepthContext
from prunerecover.model.batches import Batches, as_inputs, call, listed, split_batches
from prunerecover.model.checks import check_blocks_apart, check_plannable
from prunerecover.model.evaluation import device_of, evaluating, ordinary_arithmetic, uncompiled
from prunerecover.model.paths import unwrap
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Edit
from prunerecover.plan.evidence import DepthEvidence, RemovedShare
from prunerecover.plan.kinds import FAMILY_KINDS
from prunerecover.plan.plan import Plan
from prunerecover.surgery.provenance import plan_for
from prunerecover.surgery.saved_cost import DenseCost


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
        kinds: Sequence[str] = FAMILY_KINDS,
        *,
        batches: Batches,
        config: DepthConfig | None = None,
    ) -> None:
        self.model, self.config = unwrap(model), config or DepthConfig()
        self.config.check_ready(kinds)
        check_plannable(self.model)
        check_blocks_apart(self.model)
        self.batches = listed(batches)
        with progress("running the dense network"), ordinary_arithmetic(), evaluating(self.model), uncompiled():
            self.samples = split_batches(self.batches, device_of(self.model), self.config.seed)
            self.example = self.samples.held_out[0].select(torch.tensor([0]))
            self._check_call()
            found = find_units(self.model, [k for k in FAMILY_KINDS if k in kinds], self.example)
            if self.config.ignore:
                check_ignore(self.config.ignore, find_units(self.model))
            self.units = tuple(u for u in found if not any(fnmatch(u.name, pattern) for pattern in self.config.ignore))
            self.calibrator = Calibrator(self.model, self.samples, self.units, self.config.replace, self.config.seed)
        self._cache = SearchCache()
        self._costs: dict[str, DenseCost] = {}
        self._scores: dict[str, float] | None = None

    def plan(self, budget: Budget) -> Plan:
        """Return the plan of one budget; see `plan_depth`."""
        search = self._search_for(budget)
        units = [u for u in self.units if u.kind in budget.kinds(FAMILY_KINDS)]
        with ordinary_arithmetic(), evaluating(self.model), uncompiled():
            if search == "greedy":
                scores, chosen = greedy(self.calibrator, units, budget, self._cache)
            else:
                scores = self.rank()
                dense = self._dense_cost(budget.share[0]) if budget.share else None
                chosen = one_shot(self.calibrator, units, scores, budget, self.config.registered, dense)
            edits, tensors = edits_of(self.model, ((c.unit, c.candidate) for c in chosen))
            removed = self._removed_by(edits, budget) if edits else {}
        arguments = {
            "budget": budget.to_dict(),
            "replace": self.config.replace,
            "search": search,
            "ignore": list(self.config.ignore),
        }
        found = DepthEvidence(
            importance=scores,
            samples=self.samples.n_samples,
            divergence={choice.unit.name: choice.divergence for choice in chosen},
        )
        return plan_for(
            self.model,
            edits,
            method=f"depth/{self.config.registered.name}",
            arguments=arguments,
            seed=self.config.seed,
            tensors=tensors,
            example=self.example,
            evidence={**found.to_dict(), **removed},
        )

    def _check_call(self) -> None:
        """Raise ValueError if the model does not take the batches; what failed is its cause."""
        describe(self.model)  # a model of no supported family is explained first
        try:
            call(self.model, self.example)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise ValueError(
                f"Expected batches that {type(self.model).__name__} can be called with, but its forward pass failed: "
                f"{type(error).__name__}: {error} Do their form, shape and dtype fit the model, and has it weights?"
            ) from error

    def share_of_one(self, kind: str, cost: str) -> float:
        """Return the share of the model's cost that goes with one unit of a kind, merged: the mean over half of them.

        Args:
            kind: Of the units.
            cost: "macs", "params" or "latency", which is measured on the first batch.
        """
        units = [u for u in self.units if u.kind == kind][::2]
        with ordinary_arithmetic(), evaluating(self.model), uncompiled():
            return saving_if_left(self._dense_cost(cost), {})(units) / len(units)

    def removed_share(self, plan: Plan, cost: str) -> float:
        """Return the share of the model's cost that goes with a plan, merged; `cost` as of `share_of_one`."""
        with ordinary_arithmetic(), evaluating(self.model), uncompiled():
            return self._dense_cost(cost).removed_share(plan.edits)

    def _removed_by(self, edits: Sequence[Edit], budget: Budget) -> dict[str, Any]:
        """Measure what goes before and after `merge`, and warn if it is more than units make necessary."""
        if budget.share is None or budget.share[0] == "latency":
            return {}
        cost, asked = budget.share
        dense = self._dense_cost(cost)
        live, merged = (dense.removed_share(edits, merged=merged) for merged in (False, True))
        smallest = smallest_share(self.units, saving_if_left(dense, {}), cost)
        if merged - asked > smallest:
            warnings.warn(
                f"The plan removes {merged:.1%} of the {cost} for a budget of {asked:.1%}, although the smallest unit "
                f"holds {smallest:.1%}: no selection nearer to it was found. Ignore fewer units, or give the budget in "
                "units (remove=...).",
                stacklevel=4,
            )
        said = {"cost": cost, "live": live, "merged": merged, "asked": asked, "smallest_unit": smallest}
        return DepthEvidence(removed_share=RemovedShare.model_validate(said)).to_dict()

    def _dense_cost(self, cost: str) -> DenseCost:
        """Return what the model costs; latency is measured on the first batch, all else counted on a sample."""
        if cost not in self._costs:
            example = as_inputs(self.batches[0]).to(device_of(self.model)) if cost == "latency" else self.example
            self._costs[cost] = DenseCost(self.model, cost, example, self.config.seed)
        return self._costs[cost]

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
            with progress("scoring units"), ordinary_arithmetic(), evaluating(self.model), uncompiled():
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
