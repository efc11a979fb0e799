"""Cost saved by edits: the share of a model's MACs, parameters or latency, measured on merged copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from prunerecover.cost.latency import latency_ratio
from prunerecover.cost.macs import count_macs
from prunerecover.model.batches import ModelInputs
from prunerecover.model.copies import meta_copy, share_copy
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Edit
from prunerecover.plan.plan import Plan
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.merging import merge_edits

PAIRS = 30


def removed_share(
    model: nn.Module, edits: Sequence[Edit], cost: str, example: ModelInputs, seed: int = 0, *, merged: bool = True
) -> float:
    """Return the share of `cost` ("macs", "params" or "latency") that goes, relative to the model as it is once merged.

    Args:
        model: Unwrapped; it is not changed.
        edits: In order, without fitted tensors: values do not change the cost.
        cost: Latency is measured on the model's device, as the median of interleaved pairs.
        example: One batch.
        seed: Of the latency's bootstrap.
        merged: Whether the pruned model is merged, too, as it is once it is saved.
    """
    before, after = _copy_with((), model, cost), _copy_with(edits, model, cost, merged=merged)
    if cost == "latency":
        return 1 - latency_ratio(before, after, example, pairs=PAIRS, seed=seed).ratio.value
    if cost == "macs":
        return 1 - count_macs(after, example) / count_macs(before, example)
    return 1 - _params(after) / _params(before)


def budget_used(
    plan: Plan, budget: Budget, model: nn.Module, example: Callable[[], ModelInputs], seed: int = 0
) -> dict[str, float]:
    """Return what a plan takes, in the terms of a budget: units by kind, or the share of the cost by its name.

    Args:
        plan: Not yet applied.
        budget: What is counted.
        model: Unwrapped, as it is before.
        example: Returns one batch, which a share of cost is measured on.
        seed: Of the latency's bootstrap.
    """
    if budget.share is None:
        return {kind: len(names) for kind, names in plan.removed.items()}
    cost = budget.share[0]
    return {cost: removed_share(model, plan.edits, cost, example(), seed)} if plan.edits else {}


def _copy_with(edits: Sequence[Edit], model: nn.Module, cost: str, *, merged: bool = True) -> nn.Module:
    copy = (
        meta_copy(model) if cost == "params" else share_copy(model)
    )  # GPT-2's forward pass reads its input: not on meta
    apply_edits(copy, edits)
    if merged:
        apply_edits(copy, merge_edits(copy))
    return copy


def _params(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
