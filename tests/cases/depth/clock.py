"""Clock of parameters instead of seconds, for a shared machine."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from prunerecover import Plan, apply_plan, merge
from prunerecover.cost.statistics import Interval
from prunerecover.surgery import saved_cost


def counts_parameters(monkeypatch: pytest.MonkeyPatch, slower: float = 1.0) -> list[tuple[int, float]]:
    """Make latency follow the parameters; return samples and remaining share of each measurement.

    Args:
        monkeypatch: Fixture that restores the clock.
        slower: Factor on the pruned network's time.
    """
    timed: list[tuple[int, float]] = []

    def clock(dense: nn.Module, pruned: nn.Module, example: Any, **_: Any) -> Any:
        left = min(1.0, slower * _parameters(pruned) / _parameters(dense))
        timed.append((example.n_samples, left))
        return SimpleNamespace(ratio=Interval(left, left, left, 0.95), pairs=4, batch_size=example.n_samples)

    monkeypatch.setattr(saved_cost, "latency_ratio", clock)
    return timed


def parameters_left(model: nn.Module, plan: Plan) -> float:
    """Return the merged network's share of the parameters."""
    pruned = copy.deepcopy(model)
    apply_plan(pruned, plan)
    merge(pruned)
    return _parameters(pruned) / _parameters(model)


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
