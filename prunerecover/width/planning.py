"""Plan which channels, heads, neurons and experts to remove.

The default removes by gate-Taylor per cost, which we measured best. `allocation="tolerance"` is FAIR-Pruner (arXiv
2508.02291) by the book, on scores that are taken in evaluation mode and on whole dependency groups.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from prunerecover.batches import Batches, ModelInputs, as_inputs
from prunerecover.budget import Budget
from prunerecover.copies import clone_of, twin_of
from prunerecover.cost import removed_share, taken_by
from prunerecover.edits import Edit, Narrow, Rewrite
from prunerecover.importance.losses import supervised_loss
from prunerecover.importance.request import Loss
from prunerecover.observing import device_of, ordinary_arithmetic
from prunerecover.plan import Plan
from prunerecover.provenance import plan_for
from prunerecover.scoring import without_labels
from prunerecover.structure import unwrap
from prunerecover.surgery import apply_edits, apply_plan
from prunerecover.width.allocations import global_ranking, per_cost, uniform
from prunerecover.width.batchnorm import recalibrate_batchnorm
from prunerecover.width.compensation import fit_compensation
from prunerecover.width.costs import CostModel, cost_model
from prunerecover.width.diagnostics import tolerance_evidence
from prunerecover.width.discovery import FOUND_KINDS, check_kinds, find_groups
from prunerecover.width.filling import Removed, kind_of
from prunerecover.width.groups import Group
from prunerecover.width.narrow_edits import narrow_edits
from prunerecover.width.signals import NEED_LOSS, SIGNALS, signals
from prunerecover.width.slices import Scores
from prunerecover.width.tolerance import check_tolerance
from prunerecover.width.tolerance_allocation import tolerance_allocation
from prunerecover.width.u_score import Labels

Allocation = Literal["per_cost", "tolerance", "uniform", "global"]
Replacement = Literal["calibrated", "zero"]
LATENCY_STEPS = 6
RULES = {"per_cost": per_cost, "uniform": uniform, "global": global_ranking}


@ordinary_arithmetic()
def plan_width(
    model: nn.Module,
    budget: Budget | None = None,
    *,
    batches: Batches,
    loss: Loss | None = None,
    labels: Labels | None = None,
    allocation: Allocation = "per_cost",
    removal: str | None = None,
    protection: str | None = None,
    tolerance: float | None = None,
    kinds: Sequence[str] = FOUND_KINDS,
    replace: Replacement = "calibrated",
    rounds: int = 1,
    ignore: Sequence[str] = (),
    seed: int = 0,
) -> Plan:
    """Decide which units go within a budget; the model is bit-identical afterwards.

    Args:
        model: Nearly any module: see `find_groups`.
        budget: A share of the MACs, the parameters or the measured latency, or units of one kind in all layers
            together, such as Budget(remove={"expert": 8}). None: see `tolerance`. Experts save no MACs.
        batches: Calibration batches, labelled unless `loss` reads labels from elsewhere: tuples (input, label, ...) or
            mappings with `labels`. 256 samples do.
        loss: `loss(model, batch) -> scalar`; None: cross-entropy of the logits, or the loss that the model returns.
        labels: `labels(batch) -> (N,)` integer classes for "u_score"; None: those that the batches hold. For experts
            also classes of tokens, `(N, T)`: see `token_classes`.
        allocation: "per_cost" (the default): the least saliency per saved cost goes first. "tolerance": FAIR-Pruner's
            Tolerance of Difference. "uniform": the same share of every group. "global": the least saliency first.
        removal: For "tolerance": the signal whose low values propose what goes; None: "u_score".
        protection: The signal whose high values stay: None: "r_score" for "tolerance", "gate_taylor" otherwise. Signals
            are "u_score", "r_score", "gate_taylor", "fisher", "magnitude" and "random", and for experts "routing".
        tolerance: For "tolerance", instead of a budget: one number in [0, 1] for all groups, as published.
        kinds: Among "channel", "head", "neuron" and "expert"; a budget in units names its own.
        replace: "calibrated": weights that read a group take over what its removed units did, as far as the kept ones
            predict it (see `compensation`). "zero": nothing does, as is usual.
        rounds: The budget is reached in so many steps, scored anew each time, with BatchNorm statistics estimated anew;
            what one takes beyond its part, those after it need not take.
        ignore: Shell patterns of groups that stay, such as "layer4.*".
        seed: Of everything random.

    Returns:
        The plan; its evidence says what every group keeps. BatchNorm statistics are not part of it: call
        `recalibrate_batchnorm` once it is applied.

    Raises:
        ValueError: If the budget cannot be met, an argument is unknown or does not go with another, labels are missing,
            or the model has no groups.
    """
    if rounds < 1 or (rounds > 1 and budget is None):
        raise ValueError(f"Expected rounds of at least 1, and a budget for several, but got {rounds} and {budget}.")
    batches, kinds = list(batches), (kinds,) if isinstance(kinds, str) else kinds
    kinds = budget.kinds(kinds) if isinstance(budget, Budget) else kinds
    check_arguments(budget, allocation, removal, protection, tolerance, replace, kinds)
    options: dict[str, Any] = {"batches": batches, "loss": loss, "labels": labels}
    options |= {"kinds": kinds, "ignore": ignore, "seed": seed}
    how: dict[str, Any] = {"allocation": allocation, "removal": removal, "protection": protection, "replace": replace}
    if rounds == 1:
        return WidthPlanner(model, **options).plan(budget, tolerance=tolerance, **how)
    assert budget is not None, "checked above"
    return _in_rounds(clone_of(unwrap(model)), budget, rounds, options, how)


def _in_rounds(network: nn.Module, budget: Budget, rounds: int, options: dict[str, Any], how: dict[str, Any]) -> Plan:
    """Return the plan of several rounds on one network, which is changed."""
    asked = budget.to_dict()
    if budget.in_units:
        budget = Budget(remove=budget.counts(WidthPlanner(network, **options).units))
    several = [batch for batch in options["batches"] if as_inputs(batch).n_samples > 1] or options["batches"]
    plan, kept, taken = Plan(), dict[str, list[int]](), list[dict[str, float]]()
    for whole in budget.in_steps(rounds):
        part = whole.beyond(taken)
        if part is None:  # rounds before have taken as much
            continue
        if taken:
            recalibrate_batchnorm(network, several)
        planner = WidthPlanner(network, **options)
        step = planner.plan(part, **how)
        taken.append(taken_by(step, budget, network, planner.first_batch, options["seed"]))
        apply_plan(network, step)
        plan = plan + step
        for name, (left, size) in step.evidence.get("kept", {}).items():
            kept[name] = [left, kept.get(name, [left, size])[1]]
    arguments = {**plan.made_by.arguments, "budget": asked, "rounds": rounds}
    made_by = plan.made_by.model_copy(update={"arguments": arguments})
    evidence = {**plan.evidence, "kept": kept}
    return plan.model_copy(update={"made_by": made_by, "evidence": evidence}).with_tensors(plan.tensors)


class WidthPlanner:
    """Plans several budgets for one model, and computes once what they share; arguments as of `plan_width`.

    Attributes:
        groups: What may be narrowed, in order of depth.
        costs: What every unit costs.
    """

    @ordinary_arithmetic()
    def __init__(
        self,
        model: nn.Module,
        *,
        batches: Batches,
        loss: Loss | None = None,
        labels: Labels | None = None,
        kinds: Sequence[str] = FOUND_KINDS,
        ignore: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        self.model = unwrap(model)
        self.batches, self.loss, self.labels, self.seed = list(batches), loss or supervised_loss, labels, seed
        if not self.batches:
            raise ValueError("Expected at least one calibration batch, but got none. Was a generator consumed before?")
        self.example = self.first_batch().select(torch.tensor([0]))
        found = find_groups(self.model, self.example, kinds, ignore)
        self.groups: tuple[Group, ...] = found.groups
        self.rewrites: tuple[Rewrite, ...] = tuple(
            Rewrite(unit=s.path, in_channels=s.in_channels, out_channels=s.out_channels, stride=s.stride, first=s.first)
            for s in found.rewrites
        )
        rewritten = twin_of(self.model)
        apply_edits(rewritten, self.rewrites)
        self.costs: CostModel = cost_model(rewritten, self.groups, self.example)
        self._scores: dict[str, Scores] = {}

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
        return as_inputs(without_labels(batch)).to(device_of(self.model))

    @ordinary_arithmetic()
    def scores(self, *names: str) -> tuple[Scores, ...]:
        """Return signals by name; those that are not known yet are computed together, in one pass over the batches."""
        missing = [name for name in dict.fromkeys(names) if name not in self._scores]
        if missing:
            loss = self.loss if set(missing) & set(NEED_LOSS) else None
            options: dict[str, Any] = {"loss": loss, "labels": self.labels, "seed": self.seed}
            self._scores |= signals(self.model, self._as_it_is(), self.batches, missing, **options)
        return tuple(self._scores[name] for name in names)

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
    def plan(
        self,
        budget: Budget | None = None,
        *,
        allocation: Allocation = "per_cost",
        removal: str | None = None,
        protection: str | None = None,
        tolerance: float | None = None,
        replace: Replacement = "calibrated",
    ) -> Plan:
        """Return the plan of one budget; see `plan_width`."""
        check_arguments(budget, allocation, removal, protection, tolerance, replace, sorted(self.units))
        protection = protection or ("r_score" if allocation == "tolerance" else "gate_taylor")
        removal = removal or "u_score" if allocation == "tolerance" else None
        met = budget
        if budget is not None and budget.share is not None and budget.share[0] == "latency":
            met = self._in_macs(budget.share[1], allocation, removal, protection)
        removed, evidence = self._removed(met, allocation, removal, protection, tolerance)
        kept = {g.name: [g.size - len(removed[g.name]), g.size] for g in self.groups}
        edits, tensors = self._compensated(self._edits(removed), replace)
        return plan_for(
            self.model,
            edits,
            method=f"width/{allocation}",
            arguments={
                "budget": None if budget is None else budget.to_dict(),
                "removal": removal,
                "protection": protection,
                "tolerance": tolerance,
                "replace": replace,
            },
            seed=self.seed,
            tensors=tensors,
            example=self.example,
            evidence={"kept": kept, "kinds": {g.name: g.kind for g in self.groups}, **evidence},
        )

    def _removed(
        self,
        budget: Budget | None,
        allocation: Allocation,
        removal: str | None,
        protection: str,
        tolerance: float | None,
    ) -> tuple[Removed, dict[str, Any]]:
        if removal is None:
            assert budget is not None, "only tolerances go without"
            (saliency,) = self.scores(protection)
            return RULES[allocation](self.groups, saliency, self.costs, budget), {}
        low, high = self.scores(removal, protection)
        found = tolerance_allocation(
            self.groups, low, high, tolerance=tolerance, budget=budget, costs=self.costs if budget else None
        )
        return found.removed, tolerance_evidence(self.groups, low, high, found, self.costs)

    def _edits(self, removed: Removed) -> tuple[Edit, ...]:
        narrowed = narrow_edits(self.groups, removed)
        return (*self.rewrites, *narrowed) if narrowed else ()

    def _compensated(self, edits: Sequence[Edit], replace: Replacement) -> tuple[list[Edit], dict[str, Tensor]]:
        """Return the edits with what reading weights take over."""
        narrowing = [edit for edit in edits if isinstance(edit, Narrow)]
        if replace == "zero" or not narrowing:
            return list(edits), {}
        found = fit_compensation(self.model, narrowing, [self._inputs(batch) for batch in self.batches])
        first = len(edits) - len(narrowing)
        tensors: dict[str, Tensor] = {}
        done: list[Edit] = list(edits[:first])
        for number, (edit, values) in enumerate(zip(narrowing, found, strict=True), first):
            keyed = {f"e{number}.{path}": value for path, value in values.items()}
            tensors |= keyed
            done.append(edit.model_copy(update={"tensors": tuple(keyed)}))
        return done, tensors

    def _in_macs(self, latency: float, allocation: Allocation, removal: str | None, protection: str) -> Budget:
        """Return the budget of MACs whose plan saves a share of the latency, measured on the model's device.

        Raises:
            ValueError: If no budget of MACs that was tried saves as much.
        """
        self.scores(*(name for name in (removal, protection) if name))  # before errors mean that structure forbids it
        low, high, most, found = 0.0, 0.99, 0.0, False
        batch = self.first_batch()
        for _ in range(LATENCY_STEPS):
            middle = (low + high) / 2
            try:
                removed, _ = self._removed(Budget(macs=middle), allocation, removal, protection, None)
            except ValueError:  # structure does not allow as much
                high = middle
                continue
            saved = removed_share(self.model, self._edits(removed), "latency", batch, self.seed)
            found, most = found or saved >= latency, max(most, saved)
            low, high = (low, middle) if saved >= latency else (middle, high)
        if not found:
            raise ValueError(
                f"Expected a budget that the groups can meet, {latency:.1%} of the latency, but the most that was "
                f"saved is {most:.1%}. Lower the budget, or ignore fewer groups."
            )
        return Budget(macs=high)


def check_arguments(
    budget: Budget | None,
    allocation: str,
    removal: str | None,
    protection: str | None,
    tolerance: float | None,
    replace: str = "calibrated",
    kinds: Sequence[str] = FOUND_KINDS,
) -> None:
    """Raise ValueError if arguments of `plan_width` are unknown or do not go together, TypeError for no `Budget`."""
    if not isinstance(budget, Budget | None):
        raise TypeError(
            f"Expected argument budget to be a Budget, but got {type(budget).__name__}. Use Budget(macs=0.3)."
        )
    if replace not in get_args(Replacement):
        raise ValueError(f"Expected replace among {', '.join(get_args(Replacement))}, but got '{replace}'.")
    if allocation not in get_args(Allocation):
        raise ValueError(f"Expected allocation among {', '.join(get_args(Allocation))}, but got '{allocation}'.")
    for name, value in (("removal", removal), ("protection", protection)):
        if value is not None and value not in SIGNALS:
            raise ValueError(f"Expected argument {name} among {', '.join(SIGNALS)}, but got '{value}'.")
    by_tolerance = allocation == "tolerance"
    if not by_tolerance and (removal is not None or tolerance is not None):
        raise ValueError(
            f"Expected removal and tolerance with allocation='tolerance' only, but got allocation='{allocation}'. What "
            "stays is decided by protection."
        )
    if (budget is None) == (tolerance is None):
        wanted = "a budget or a tolerance" if by_tolerance else "a budget, such as Budget(macs=0.3)"
        raise ValueError(f"Expected {wanted}, and not both, but got budget={budget} and tolerance={tolerance}.")
    if tolerance is not None:
        check_tolerance(tolerance)
    if budget is not None and budget.share is None:
        kind_of(budget)
    elif budget is not None and tuple(kinds) == ("expert",) and budget.params is None:
        raise ValueError(
            f"Expected a budget of params or units for experts, but got {budget.to_dict()}: a token visits as many "
            'experts however many there are. For example Budget(params=0.2) or Budget(remove={"expert": 8}).'
        )
    check_kinds(kinds)
