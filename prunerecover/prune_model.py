"""Pruning in one call, for training loops without a Trainer."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from prunerecover.apply import apply_plan
from prunerecover.families.libraries.offloaded_weights import map_offloaded
from prunerecover.model.batches import Batches
from prunerecover.model.copies import deep_copy
from prunerecover.model.paths import unwrap
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.planning.plan_pruning import plan_pruning
from prunerecover.recovery.reconstruction import made_for, reconstruct, reconstructible
from prunerecover.surgery.apply_edits import undo
from prunerecover.surgery.merging import merge
from prunerecover.surgery.optimizer_update import check_optimizer, update_optimizer


def prune(
    model: nn.Module, budget: Budget, batches: Batches, *, optimizer: Optimizer | None = None, **planning: Any
) -> Plan:
    """Prune a model in place to a budget, in depth and width, and return the plan.

    The plan comes from `plan_pruning`. After surgery, a network with BatchNorm is reconstructed (see `reconstruct`),
    linears without an activation between them are merged, and the optimizer is updated. Further training recovers the
    quality; `save_pruned(model, plan, folder)` saves the network.

    >>> import torch
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> batches = [(torch.randn(32, 4), torch.randint(2, (32,))) for _ in range(2)]
    >>> plan = prune(model, Budget(params=0.55), batches, optimizer=optimizer)
    >>> sum(parameter.numel() for parameter in model.parameters())
    100

    Args:
        model: Any network, wrapped or not, on any device.
        budget: Budget of the plan; see `plan_pruning`.
        batches: Calibration batches, as in `plan_pruning`.
        optimizer: Optimizer of the model's parameters: removed parameters leave the optimizer, narrowed ones keep their
            moments.
        **planning: Other arguments of `plan_pruning`, such as `ignore=`, `kinds=` or `store=`.

    Returns:
        The plan from the former model to the pruned one.

    Raises:
        ValueError: If `plan_pruning`, `apply_plan` or `reconstruct` raises a ValueError; the model stays unchanged
            then.
        TypeError: If an argument is of another type.
    """
    network = unwrap(model)
    if optimizer is not None:
        check_optimizer(optimizer)
    plan = plan_pruning(network, budget, batches=batches, **planning)
    fits = made_for(network) and reconstructible(plan)
    dense = deep_copy(network) if fits else network
    if fits:
        map_offloaded(dense)
    applied = apply_plan(network, plan)
    try:
        if fits:
            how = {name: planning[name] for name in ("seed", "divergence") if name in planning}
            reconstruct(network, dense, plan, batches, **how)
    except BaseException:
        undo(network, applied.journal)
        raise
    if optimizer is not None:
        update_optimizer(optimizer, applied)
    return plan + merge(network, optimizer)
