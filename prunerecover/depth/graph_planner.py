"""Plan the depth of any network, as its computation graph shows it: layers, branches and blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch

import torch
from torch import nn

from prunerecover.depth.arguments import DepthConfig, check_ignore
from prunerecover.depth.layers import scores as graph_scores
from prunerecover.depth.layers.goals import Counted, Goal, Share
from prunerecover.depth.layers.joint import JointSearch, in_groups
from prunerecover.depth.layers.removals import Removals
from prunerecover.depth.layers.scores import GraphContext
from prunerecover.depth.layers.variants import Variants
from prunerecover.depth.search import count_by_kind
from prunerecover.depth.selection import check_comparable
from prunerecover.display.progress import progress
from prunerecover.families.describe import is_supported
from prunerecover.importance.context import DepthContext
from prunerecover.importance.registry import IMPORTANCES, check_unit_scores
from prunerecover.model.batches import Batches, ModelInputs, as_inputs, call, listed, split_batches
from prunerecover.model.checks import check_plannable
from prunerecover.model.evaluation import device_of, evaluating, ordinary_arithmetic, uncompiled
from prunerecover.model.paths import unwrap
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Edit
from prunerecover.plan.evidence import DepthEvidence, RemovedShare
from prunerecover.plan.plan import Plan
from prunerecover.plan.units import Unit
from prunerecover.surgery.provenance import plan_for
from prunerecover.surgery.saved_cost import DenseCost


class GraphPlanner:
    """Plans several budgets for one network of any architecture; it must have the same weights at every `plan`.

    Args:
        model: See `plan_depth`.
        kinds: Kinds of the units that may go.
        batches: See `plan_depth`.
        config: All other arguments of `plan_depth`.

    Attributes:
        units: What may go, in order of execution.
    """

    def __init__(self, model: nn.Module, kinds: Sequence[str], *, batches: Batches, config: DepthConfig) -> None:
        self.model, self.config = unwrap(model), config
        self.config.check_ready(kinds)
        check_plannable(self.model)
        self.batches = listed(batches)
        with ordinary_arithmetic(), evaluating(self.model), uncompiled():
            self.samples = split_batches(self.batches, device_of(self.model), config.seed)
            self.example = self.samples.held_out[0].select(torch.tensor([0]))
            self.removals, self.units = units_that_may_go(self.model, self.example, kinds, config)
            with progress("running the dense network"):
                self.variants = Variants(self.removals, (*self.samples.fit, *self.samples.held_out))
        self._costs: dict[str, DenseCost] = {}
        self._saved: dict[tuple[str, frozenset[str]], float] = {}
        self._scores: dict[str, float] | None = None

    def plan(self, budget: Budget) -> Plan:
        """Return the plan of one budget; see `plan_depth`."""
        with ordinary_arithmetic(), evaluating(self.model), uncompiled():
            scores, chosen = self._choose(budget)
            edits = self.removals.edits(chosen)
            removed = self._removed_by(edits, budget) if edits else {}
            divergence = {
                unit.name: self.variants.divergence(chosen[: i + 1])
                for i, unit in enumerate(chosen[-1:], len(chosen) - 1)
            }
        found = DepthEvidence(
            importance={name: value for name, value in scores.items() if value != float("inf")},
            samples=self.samples.n_samples,
            divergence=divergence,
        )
        return plan_for(
            self.model,
            edits,
            method=f"depth/{self.config.registered.name}",
            arguments={
                "budget": budget.to_dict(),
                "replace": self.config.replace,
                "search": self._search(),
                "kinds": sorted({unit.kind for unit in self.units}),
                "ignore": list(self.config.ignore),
            },
            seed=self.config.seed,
            example=self.example,
            evidence={**found.to_dict(), **removed},
        )

    def _choose(self, budget: Budget) -> tuple[Mapping[str, float], list[Unit]]:
        goal, search = self._goal(budget), self._search()
        if search in ("joint", "greedy"):
            found = JointSearch(self.variants, goal, exchange=search == "joint")
            chosen = found.run()
            return found.first, chosen
        scores = self.rank()
        if search == "rounds":
            return scores, self._in_rounds(goal)
        ranked = sorted((u for u in self.units if scores[u.name] != float("inf")), key=lambda u: scores[u.name])
        if search == "two_to_one":
            return scores, in_groups([_no_attention, _is_attention, _no_attention], ranked, goal, self.removals.can_go)
        if budget.share is not None:
            check_comparable(self.units, self.config.registered)
            ranked.sort(key=lambda unit: scores[unit.name] / max(goal.price(unit), 1e-12))
        return scores, in_groups([lambda _: True], ranked, goal, self.removals.can_go)

    def _in_rounds(self, goal: Goal) -> list[Unit]:
        """Score the units anew on the pruned network, and remove the lowest, in turn."""
        chosen: list[Unit] = []
        with progress("removing one unit after the other") as advance:
            while not goal.met(chosen):
                left = goal.open(chosen)
                found = self._scored(left, tuple(chosen))
                able = [unit for unit in left if found[unit.name] != float("inf")]
                if not able:
                    raise ValueError("Expected enough units for the budget, but none is left that can go. Lower it.")
                chosen.append(min(able, key=lambda unit: found[unit.name] / goal.price(unit)))
                advance()
        return chosen

    def rank(self) -> dict[str, float]:
        """Return the importance of every unit as it is before anything goes; computed once."""
        if self._scores is None:
            with progress("scoring units"), ordinary_arithmetic(), evaluating(self.model), uncompiled():
                self._scores = self._scored(self.units, ())
        return self._scores

    def _scored(self, units: Sequence[Unit], gone: tuple[Unit, ...]) -> dict[str, float]:
        name = self.config.registered.name
        if (
            name in graph_scores.IMPORTANCES and IMPORTANCES.get(name) is self.config.registered
        ):  # else it is a user's own
            found = graph_scores.IMPORTANCES[name](
                GraphContext(self.variants, units, gone, tuple(self.batches), self.config.loss, self.config.seed)
            )
            check_unit_scores({k: v for k, v in found.items() if v != float("inf")}, name)
            return found
        context = DepthContext(
            model=self.model, units=units, batches=tuple(self.batches), loss=self.config.loss, seed=self.config.seed
        )
        return self.config.registered(context)

    def _goal(self, budget: Budget) -> Goal:
        known = is_supported(self.model)
        if budget.share is None:
            return Counted(self.units, budget.counts(count_by_kind(self.units)), known)
        cost, share = budget.share
        return Share(self.units, share, lambda units: self._saved_by(units, cost), known)

    def _saved_by(self, units: Sequence[Unit], cost: str) -> float:
        key = cost, frozenset(unit.name for unit in units)
        if key not in self._saved:
            try:
                self._saved[key] = self._dense_cost(cost).removed_share(self.removals.edits(units))
            except ValueError:  # its widths cannot be reconciled: it saves nothing, and is not offered
                self._saved[key] = 0.0
        return self._saved[key]

    def _search(self) -> str:
        default = "joint" if self.config.registered.name == "output_divergence" else "one_shot"
        return self.config.search or default

    def share_of_one(self, kind: str, cost: str) -> float:
        """Return the share of the network's cost that goes with one unit of a kind: the mean over half of them."""
        units = [u for u in self.units if u.kind == kind][::2]
        with ordinary_arithmetic(), evaluating(self.model), uncompiled():
            return sum(self._saved_by([unit], cost) for unit in units) / len(units)

    def removed_share(self, plan: Plan, cost: str) -> float:
        """Return the share of the network's cost that goes with a plan, merged."""
        with ordinary_arithmetic(), evaluating(self.model), uncompiled():
            return self._dense_cost(cost).removed_share(plan.edits)

    def _removed_by(self, edits: Sequence[Edit], budget: Budget) -> dict[str, object]:
        if budget.share is None or budget.share[0] == "latency":
            return {}
        cost, asked = budget.share
        dense = self._dense_cost(cost)
        live, merged = (dense.removed_share(edits, merged=merged) for merged in (False, True))
        prices = [self._saved_by([unit], cost) for unit in self.units]
        smallest = min(price for price in prices if price > 0)
        said = {"cost": cost, "live": live, "merged": merged, "asked": asked, "smallest_unit": smallest}
        return DepthEvidence(removed_share=RemovedShare.model_validate(said)).to_dict()

    def _dense_cost(self, cost: str) -> DenseCost:
        if cost not in self._costs:
            example = as_inputs(self.batches[0]).to(device_of(self.model)) if cost == "latency" else self.example
            self._costs[cost] = DenseCost(self.model, cost, example, self.config.seed)
        return self._costs[cost]


def units_that_may_go(
    model: nn.Module, example: ModelInputs, kinds: Sequence[str], config: DepthConfig
) -> tuple[Removals, tuple[Unit, ...]]:
    """Return all that can be taken out of a network, and the units of it that are not ignored.

    Args:
        model: Unwrapped, in evaluation mode.
        example: One sample on its device.
        kinds: Of the units.
        config: Says which are ignored, and whether strided layers may go.

    Raises:
        ValueError: If the model does not take the sample, has no such unit, or a pattern matches none.
    """
    try:
        call(model, example)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ValueError(
            f"Expected batches that {type(model).__name__} can be called with, but its forward pass failed: "
            f"{type(error).__name__}: {error} Do their form, shape and dtype fit the model, and has it weights?"
        ) from error
    with progress("tracing the network"):
        removals = Removals(model, example, kinds, include_strided=config.include_strided)
    if config.ignore and removals.units:
        check_ignore(config.ignore, removals.units)
    units = tuple(u for u in removals.units if not any(fnmatch(u.name, pattern) for pattern in config.ignore))
    if not units:
        why = "; ".join(f"'{path}': {reason}" for path, reason in list(removals.refused.items())[:3])
        raise ValueError(
            f"Expected {type(model).__name__} to have units of kind {', '.join(kinds)} that may go, but there is none"
            f"{f' ({why})' if why else ''}. Allow other kinds, or ignore fewer units; channels, heads and neurons are "
            "narrowed by plan_width and WidthPrune."
        )
    return removals, units


def _is_attention(unit: Unit) -> bool:
    return unit.kind == "attention"


def _no_attention(unit: Unit) -> bool:
    return unit.kind != "attention"
