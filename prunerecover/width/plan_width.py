"""Plan which channels, heads, neurons and experts to remove, at once or in several rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from prunerecover.importance.context import Loss
from prunerecover.model.batches import Batches
from prunerecover.model.copies import deep_copy
from prunerecover.model.evaluation import ordinary_arithmetic
from prunerecover.model.paths import unwrap
from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import WidthEvidence
from prunerecover.plan.plan import Plan
from prunerecover.recovery.batchnorm import recalibrate_batchnorm, several_samples
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.saved_cost import budget_used
from prunerecover.width.arguments import Allocation, WidthReplace, check_arguments
from prunerecover.width.groups.discovery import FOUND_KINDS
from prunerecover.width.planner import WidthPlanner
from prunerecover.width.signals.u_score import ClassLabels


@ordinary_arithmetic()
def plan_width(
    model: nn.Module,
    budget: Budget | None = None,
    *,
    batches: Batches,
    loss: Loss | None = None,
    labels: ClassLabels | None = None,
    allocation: Allocation = "per_cost",
    removal: str | None = None,
    protection: str | None = None,
    tolerance: float | None = None,
    kinds: Sequence[str] = FOUND_KINDS,
    replace: WidthReplace = "calibrated",
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
        allocation: "per_cost" (the default): the least saliency per saved cost goes first; what a head counts for
            beside a neuron, and so on, is tried (`best_kind_weights`). "tolerance": FAIR-Pruner's Tolerance of
            Difference. "uniform": the same share of every group. "global": the least saliency first.
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
        The plan; its evidence says what every group keeps, and the `rates` and `damping` that were tried best (in the
        last round). BatchNorm statistics are not part of it: call `recalibrate_batchnorm` once it is applied.

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
    return _in_rounds(deep_copy(unwrap(model)), budget, rounds, options, how)


def _in_rounds(network: nn.Module, budget: Budget, rounds: int, options: dict[str, Any], how: dict[str, Any]) -> Plan:
    """Return the plan of several rounds on one network, which is changed."""
    asked = budget.to_dict()
    if budget.in_units:
        budget = Budget(remove=budget.counts(WidthPlanner(network, **options).units))
    several = several_samples(options["batches"]) or options["batches"]
    plan, kept, taken = Plan(), dict[str, tuple[int, int]](), list[dict[str, float]]()
    for whole in budget.in_steps(rounds):
        part = whole.remaining(taken)
        if part is None:  # rounds before have taken as much
            continue
        if taken:
            recalibrate_batchnorm(network, several)
        planner = WidthPlanner(network, **options)
        step = planner.plan(part, **how)
        taken.append(budget_used(step, budget, network, planner.first_batch, options["seed"]))
        apply_edits(network, step.edits, step.tensors)
        plan = plan + step
        for name, (left, size) in WidthEvidence.of(step.evidence).kept.items():
            kept[name] = (left, kept.get(name, (left, size))[1])
    arguments = {**plan.made_by.arguments, "budget": asked, "rounds": rounds}
    made_by = plan.made_by.model_copy(update={"arguments": arguments})
    evidence = {**plan.evidence, **WidthEvidence(kept=kept).to_dict()}
    return plan.model_copy(update={"made_by": made_by, "evidence": evidence}).with_tensors(plan.tensors)
