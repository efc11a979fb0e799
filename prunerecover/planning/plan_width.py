"""Plans in width: channels, heads, neurons and experts to remove."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torch import nn

from prunerecover.display.progress import progress
from prunerecover.divergence.registry import Divergence, comparing_by
from prunerecover.importance.context import ClassLabels, Importance
from prunerecover.importance.measuring.losses import Loss
from prunerecover.importance.measuring.names import name_of
from prunerecover.importance.saved_scores import SavedScores
from prunerecover.model.batches import Batches
from prunerecover.model.evaluation import ordinary_arithmetic
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.budget_search import NO_CHOICE, BudgetSearch
from prunerecover.planning.planner import Planner
from prunerecover.session.asked import planned_as_asked
from prunerecover.session.removed_share import share_evidence
from prunerecover.session.session import Session
from prunerecover.width.allocation.registry import AllocationRule
from prunerecover.width.allocator import WidthAllocator
from prunerecover.width.arguments import WidthConfig, WidthReplace
from prunerecover.width.groups.discovery import FOUND_KINDS
from prunerecover.width.groups.rounding import RoundTo


def plan_width(
    model: nn.Module,
    budget: Budget | None = None,
    *,
    batches: Batches,
    loss: Loss | None = None,
    labels: ClassLabels | None = None,
    allocation: str | AllocationRule | None = None,
    importance: str | Importance | Sequence[str | Importance] | None = None,
    tolerance: float | None = None,
    kinds: Sequence[str] = FOUND_KINDS,
    replace: WidthReplace = "calibrated",
    equal_layers: bool = False,
    round_to: RoundTo | None = None,
    ignore: Sequence[str] = (),
    scores: str | Path | SavedScores | None = None,
    seed: int = 0,
    divergence: str | Divergence | None = None,
) -> Plan:
    """Decide which units go within a budget; the model is bit-identical afterwards.

    Args:
        model: Nearly any module: see `find_sites`.
        budget: A share of the MACs, the parameters or the measured latency, the remaining amount of such a cost, as in
            Budget(params="100M"), or units of a kind in all layers together, such as Budget(remove={"expert": 8}).
            None: see `tolerance`. Experts save no MACs.
        batches: Calibration batches: inputs alone, or labelled, as tuples (input, label, ...) or mappings with
            `labels`. 256 samples do. Where labels show BatchNorm statistics lagging behind the weights, as in the
            middle of a training, the plan is for the network with fresh statistics (see `recovery.dense_reference`).
        loss: `loss(model, batch) -> scalar`; None: cross-entropy of the logits, or the loss returned by the model; for
            texts without labels, cross-entropy of the next tokens; for other batches without labels, the loss against
            classes, objects or directions drawn from the network's own output (see `importance.measuring.drawn`).
        labels: `labels(batch) -> (N,)` integer classes for "u_score"; None: the labels of the batches. For experts
            also classes of tokens, `(N, T)`: see `token_classes`.
        allocation: Rule that chooses the sizes of groups. None (the default): the integer program over the library of
            variants, as in `plan_pruning`, where measured best: for a share of a cost, in networks of heads and
            neurons without BatchNorm and with comparable outputs, unless an importance is given. Heads get fewer and
            smaller then. Else, and by name, "per_cost": the least importance per saved cost goes first; the
            weight of a head beside a neuron, and so on, is tried (`best_kind_weights`). "fair_pruner": FAIR-Pruner's
            Tolerance of Difference. "uniform": the same share of every group. "global": the least importance first. Or
            a rule named by `register_allocation`, or a callable `(groups, scores, costs, budget) -> {group name:
            numbers of the removed units}`.
        importance: Ranking of units, high stays; None: "gate_taylor", with channels of networks with BatchNorm in a
            separate order (see `channel_order`). For "fair_pruner" two: low values of the first propose removals, high
            values of the second stay; None: ("u_score", "r_score"). By name: "gate_taylor",
            "u_score", "r_score", "taylor", "squared_taylor", "magnitude", "l2_norm" and "random", for experts
            "routing", "reap" and "reap_normalised", and of torch-pruning "group_taylor", "group_magnitude" and "lamp".
            Or an importance named by `register_importance`, a callable `(context) -> {group name: (size,)}` (see
            `importance.context`), or an importance object of torch-pruning.
        tolerance: Number in [0, 1] for all groups, as published, for "fair_pruner", instead of a budget.
        kinds: Kinds among "channel", "head", "neuron", "expert" and "hidden", the features of a transformer's residual
            stream (the hidden size); a budget in units names the kinds itself.
        replace: "calibrated": weights that read a group take over the work of the removed units, as far as predicted
            by the kept units, tuned on the network's output (see `compensation` and `tuning`): least squares, then
            two to four epochs over the same samples if there are at least 32. Kept experts are refitted by least
            squares (see `expert_refit`). "zero": no replacement, as is usual.
        equal_layers: Whether layers of equal kind and size keep equal numbers of units, as a config of transformers can
            express: `save_pruned` then makes a folder for `from_pretrained`. The budget is met by less than a unit of
            each layer.
        round_to: Number that divides the size of every group, for the sake of processors: 8 for channels, neurons and
            hidden features (heads and experts go singly), or a number per kind, such as {"channel": 8, "neuron": 64}.
            A group whose width is no multiple stays whole or is narrowed to a multiple; a group with fewer units stays
            whole. Units go in steps of the number until the budget is met, without needless steps. None: any number,
            but for a latency 8 is tried, too, and taken if less importance goes for the budget; 1: any number.
        ignore: Shell patterns of groups that stay, such as "layer4.*".
        scores: Scores of the dense network, saved earlier: the file written by `prunerecover plan` beside a plan, or by
            `sensitivity`. Nothing is scored again, whatever the budget.
        seed: Seed of everything random.
        divergence: Comparison of outputs: a name among `divergence.registry.DIVERGENCES`, or a callable `(dense,
            pruned) -> scalar`; None: by the structure of the outputs.

    Returns:
        The plan, with the kept units of every group and the best `rates` and `damping` as evidence. BatchNorm
        statistics are not part of the plan: call `recalibrate_batchnorm` after applying the plan.

    Raises:
        ValueError: If the budget cannot be met, an argument is unknown or conflicts with a second argument, labels are
            missing for "u_score", or the model has no groups.
    """
    config = WidthConfig(
        allocation=allocation,
        importance=importance,
        tolerance=tolerance,
        replace=replace,
        equal_layers=equal_layers,
        round_to=round_to,
        loss=loss,
        labels=labels,
        kinds=kinds,
        ignore=ignore,
        scores=scores,
        seed=seed,
    ).for_budget(budget)
    with comparing_by(divergence):
        return width_plan(Session.with_dense_reference(model, batches, loss=loss, seed=seed), budget, config)


@ordinary_arithmetic()
def width_plan(session: Session, budget: Budget | None, config: WidthConfig) -> Plan:
    """Return `plan_width`'s plan for the network of a session.

    Args:
        session: Network and samples.
        budget: Budget, as in `plan_width`.
        config: All other arguments of `plan_width`, for this budget.
    """
    with progress("planning width"):
        return plan_with(WidthAllocator(session, config), budget)


def plan_with(width: WidthAllocator, budget: Budget | None) -> Plan:
    """Return the plan of a budget: out of the library where the library serves, else by the allocation.

    Args:
        width: Groups with costs and scores.
        budget: Budget of the groups; None: the allocation has a tolerance.
    """
    return width.plan(None) if budget is None else planned_as_asked(width.session, budget, partial(_in_shares, width))


def _in_shares(width: WidthAllocator, budget: Budget) -> Plan:
    """Return the plan of a budget in shares or units."""
    if budget.share is not None and budget.share[1] > 0 and _is_usual(width.config):
        planner = _planner_of(width, budget)
        if planner.has_library and width.session.samples.enough:
            try:
                return _out_of_library(planner, budget)
            except NO_CHOICE:  # its sizes are too coarse for so much
                pass
    return width.plan(budget)


def _is_usual(config: WidthConfig) -> bool:
    """Whether the arguments ask for nothing beyond the library: its method, and units narrowed by the library."""
    asked = config.allocation is not None or config.importance is not None or config.replace != "calibrated"
    return not asked and set(config.kinds) <= set(FOUND_KINDS)


def _planner_of(width: WidthAllocator, budget: Budget) -> Planner:
    """Return the planner of a budget out of the library of width alone."""
    config = width.config
    sizes = ("head_dim",) if set(FOUND_KINDS) <= set(config.kinds) else ()
    shared = PruningConfig(
        loss=config.loss,
        kinds=(*config.kinds, *sizes),
        equal_layers=config.equal_layers,
        round_to=config.round_to,
        ignore=config.ignore,
        seed=config.seed,
    )
    return Planner(width.session, tuple(budget.costs), shared, width)


def _out_of_library(planner: Planner, budget: Budget) -> Plan:
    """Return the plan of a budget out of the library, as a plan of width."""
    with planner.searching():
        found = BudgetSearch(planner, budget).together()
    config = planner.width_config
    arguments = {
        "budget": budget.to_dict(),
        "importance": name_of(*config.importances),
        "replace": config.replace,
        **planner.config.said(),
        "kinds": list(config.kinds),
    }
    made_by = found.plan.made_by.model_copy(update={"method": "width/program", "arguments": arguments})
    removed = share_evidence(planner.session, found.plan.edits, budget.shares, found.saved)
    evidence = {**found.plan.evidence, **removed}
    return found.plan.model_copy(update={"made_by": made_by, "evidence": evidence}).with_tensors(found.plan.tensors)
