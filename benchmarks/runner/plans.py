"""Plans of benchmarks: saved for later runs, applied to a copy, and the remaining costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from benchmarks.runner.rows import CHECKPOINTS
from prunerecover import Plan, apply_plan, merge
from prunerecover.cost.macs import count_macs
from prunerecover.model.copies import deep_copy

T = TypeVar("T")


def saved_plan(name: str, make: Callable[[], Plan], folder: Path = CHECKPOINTS) -> Plan:
    """Return a saved plan by name, or make and save it."""
    path = folder / f"{name}.json"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        make().save(path)
    return Plan.load(path)


def kept(path: Path, make: Callable[[], T]) -> T:
    """Return the tensors or plain values of a file, or make and save them."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(make(), path)
    found: T = torch.load(path, weights_only=True)
    return found


def pruned(network: nn.Module, plan: Plan, merged: bool = True) -> nn.Module:
    """Return a copy of a network after a plan, with linears merged unless it is to be trained."""
    copied = deep_copy(network).eval()
    apply_plan(copied, plan)
    if merged:
        merge(copied)
    return copied


def removed(plan: Plan) -> dict[str, list[str]]:
    """Return the names of the removed units by kind, for JSON."""
    return {kind: list(names) for kind, names in plan.removed.items()}


def share_of_parameters(dense: nn.Module, other: nn.Module) -> float:
    """Return the remaining share of the parameters."""
    left, whole = (sum(parameter.numel() for parameter in network.parameters()) for network in (other, dense))
    return left / whole


def shares(dense: nn.Module, other: nn.Module, example: Any) -> dict[str, float]:
    """Return the remaining shares of the parameters and MACs."""
    macs = count_macs(other, example) / count_macs(dense, example)
    return {"params_share": share_of_parameters(dense, other), "macs_share": macs}
