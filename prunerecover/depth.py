"""Plan which blocks, attentions, MLPs and activations to remove, and what they leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.batches import Batches, ModelInputs, as_inputs, split_batches
from prunerecover.budget import Budget
from prunerecover.calibrated import REPLACEMENTS, Calibrator
from prunerecover.cost import removed_share
from prunerecover.importance import IMPORTANCES, NEED_LOSS, Request, check_scores
from prunerecover.observing import device_of, observing, ordinary_arithmetic, uncompiled
from prunerecover.plan import Plan
from prunerecover.provenance import plan_for
from prunerecover.search import Memory, bare_share, edits_of, greedy, one_shot
from prunerecover.structure import unwrap
from prunerecover.units import DEPTH_KINDS, Unit, find_units

SEARCHES = ("one_shot", "greedy")


def plan_depth(
    model: nn.Module,
    budget: Budget | None = None,
    *,
    remove: Mapping[str, int] | None = None,
    batches: Batches,
    importance: str = "output_divergence",
    loss: Callable[[nn.Module, Any], Tensor] | None = None,
    replace: str = "calibrated",
    search: str | None = None,
    ignore: Sequence[str] = (),
    seed: int = 0,
) -> Plan:
    """Decide what to remove within a budget; the model is bit-identical afterwards.

    Args:
        model: A supported model (see `find_units`), wrapped or not.
        budget: How much goes.
        remove: Short for `Budget(remove=...)`: units per kind.
        batches: Calibration batches: tensors, tuples whose first element is the input, or mappings. No labels are read,
            except by importances that take a `loss`. Every 4th sample is held out to judge what was fitted to the
            others.
        importance: What ranks units within their kind: "output_divergence" (the default), "gate_gradient", "taylor",
            "magnitude", "angular_distance", "block_influence" or "random".
        loss: `loss(model, batch) -> scalar`, for "gate_gradient" and "taylor".
        replace: "calibrated" fits what is left and picks it by its effect on the output; "zero" and "identity" are
            there by name. Whole blocks always leave nothing.
        search: "greedy" removes one unit at a time and ranks the others again on the pruned model: units interact, and
            this was measured better; it needs "output_divergence" and a budget in units. "one_shot" ranks once. None:
            greedy where it is possible.
        ignore: Shell patterns of unit names that stay, such as "blocks.0.*".
        seed: Of the held-out split and of everything random.

    Returns:
        The plan, with the importance of every unit as evidence.

    Raises:
        ValueError: If the budget cannot be met, an argument is unknown, there are no batches, or importances are NaN.
    """
    budget = _budget(budget, remove)
    planner = DepthPlanner(
        model,
        budget.kinds(DEPTH_KINDS),
        batches=batches,
        importance=importance,
        loss=loss,
        replace=replace,
        search=search,
        ignore=ignore,
        seed=seed,
    )
    return planner.plan(budget)


class DepthPlanner:
    """Plans several budgets for one model, and computes once what they share; arguments as of `plan_depth`.

    The model must have the same weights at every `plan`.

    Args:
        kinds: What may go.

    Attributes:
        units: What may go, in order of depth.
    """

    def __init__(
        self,
        model: nn.Module,
        kinds: Sequence[str] = DEPTH_KINDS,
        *,
        batches: Batches,
        importance: str = "output_divergence",
        loss: Callable[[nn.Module, Any], Tensor] | None = None,
        replace: str = "calibrated",
        search: str | None = None,
        ignore: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        self.model = unwrap(model)
        self.importance, self.loss, self.replace, self.search, self.seed = importance, loss, replace, search, seed
        self.ignore = (ignore,) if isinstance(ignore, str) else tuple(ignore)
        check_names(importance, replace, search)
        _check(importance, loss, kinds)
        self.batches = _listed(batches)
        with ordinary_arithmetic(), observing(self.model), uncompiled():
            self.samples = split_batches(self.batches, device_of(self.model), seed)
            self.example = self.samples.held_out[0].select(torch.tensor([0]))
            found = find_units(self.model, [k for k in DEPTH_KINDS if k in kinds], self.example)
            _check_patterns(self.ignore, find_units(self.model))
            self.units = tuple(u for u in found if not any(fnmatch(u.name, pattern) for pattern in self.ignore))
            self.calibrator = Calibrator(self.model, self.samples, self.units, replace, seed)
        self._memory = Memory()
        self._scores: dict[str, float] | None = None

    def plan(self, budget: Budget) -> Plan:
        """Return the plan of one budget; see `plan_depth`."""
        search = self._search_for(budget)
        units = [u for u in self.units if u.kind in budget.kinds(DEPTH_KINDS)]
        with ordinary_arithmetic(), observing(self.model), uncompiled():
            if search == "greedy":
                scores, chosen = greedy(self.calibrator, units, budget, self._memory)
            else:
                scores = self.rank()
                timed = self._example_for(budget.share[0] if budget.share else None)
                chosen = one_shot(self.calibrator, units, scores, budget, self.importance, timed)
            edits, tensors = edits_of(self.model, ((c.unit, c.candidate) for c in chosen))
        arguments = {"budget": budget.to_dict(), "replace": self.replace, "search": search, "ignore": list(self.ignore)}
        return plan_for(
            self.model,
            edits,
            method=f"depth/{self.importance}",
            arguments=arguments,
            seed=self.seed,
            tensors=tensors,
            example=self.example,
            evidence={
                "importance": scores,
                "samples": self.samples.n_samples,
                "divergence": {choice.unit.name: choice.divergence for choice in chosen},
            },
        )

    def share_of_one(self, kind: str, cost: str) -> float:
        """Return the share of the model's cost that goes with one unit of a kind, merged: the mean over half of them.

        Args:
            kind: Of the units.
            cost: "macs", "params" or "latency", which is measured on the first batch.
        """
        units = [u for u in self.units if u.kind == kind][::2]
        with ordinary_arithmetic(), observing(self.model), uncompiled():
            return bare_share(self.calibrator, cost, self._example_for(cost))(units) / len(units)

    def removed_share(self, plan: Plan, cost: str) -> float:
        """Return the share of the model's cost that goes with a plan, merged; `cost` as of `share_of_one`."""
        with ordinary_arithmetic(), observing(self.model), uncompiled():
            return removed_share(self.model, plan.edits, cost, self._example_for(cost), self.seed)

    def _example_for(self, cost: str | None) -> ModelInputs:
        return as_inputs(self.batches[0]).to(device_of(self.model)) if cost == "latency" else self.example

    def rank(self) -> dict[str, float]:
        """Return the importance of every unit as it is before anything goes; computed once."""
        if self._scores is None:
            request = Request(
                self.model, self.units, tuple(self.batches), self.calibrator, self.loss, self.seed, self.replace
            )
            with ordinary_arithmetic(), observing(self.model), uncompiled():
                self._scores = IMPORTANCES[self.importance](request)
            check_scores(self._scores, self.importance)
        return self._scores

    def _search_for(self, budget: Budget) -> str:
        possible = self.importance == "output_divergence" and budget.share is None
        if self.search == "greedy" and not possible:
            raise ValueError(
                "Expected importance='output_divergence' and a budget in units (remove=... or ratio=...) for "
                f"search='greedy', but got '{self.importance}' and {budget.to_dict()}. Use search='one_shot'."
            )
        return self.search or ("greedy" if possible else "one_shot")


def _budget(budget: Budget | None, remove: Mapping[str, int] | None) -> Budget:
    if (budget is None) == (remove is None):
        raise ValueError('Expected either a budget or remove={"attention": 3, ...}, and not both.')
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(
            f"Expected argument budget to be a Budget, but got {type(budget).__name__}. "
            "Units per kind are remove={...}."
        )
    return Budget(remove=remove) if budget is None else budget


def _check_patterns(ignore: Sequence[str], units: Sequence[Unit]) -> None:
    for pattern in ignore:
        if not any(fnmatch(unit.name, pattern) for unit in units):
            raise ValueError(
                f"Expected argument ignore to match units such as {units[0].name}, but '{pattern}' matches none. "
                "List the names with find_units(model)."
            )


def _listed(batches: Batches) -> list[Any]:
    if isinstance(batches, Tensor | Mapping):
        raise TypeError(
            f"Expected argument batches to be an iterable of batches, but got one {type(batches).__name__}. "
            "Pass batches=[batch]."
        )
    return list(batches)


def check_names(importance: str, replace: str, search: str | None) -> None:
    """Raise ValueError if an importance, replacement or search is unknown."""
    for name, value, allowed in (
        ("importance", importance, tuple(IMPORTANCES)),
        ("replace", replace, REPLACEMENTS),
        ("search", search or SEARCHES[0], SEARCHES),
    ):
        if value not in allowed:
            raise ValueError(f"Expected argument {name} to be one of {', '.join(allowed)}, but got '{value}'.")


def _check(importance: str, loss: Any, kinds: Sequence[str]) -> None:
    for kind in kinds:
        if kind not in DEPTH_KINDS:
            raise ValueError(f"Expected kinds among {', '.join(DEPTH_KINDS)} for a plan in depth, but got '{kind}'.")
    if importance in NEED_LOSS and loss is None:
        raise ValueError(
            f"Expected argument loss=f(model, batch) for importance='{importance}', but got none. "
            "The default, 'output_divergence', needs no labels."
        )
