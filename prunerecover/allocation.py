"""Turn importances and a budget into the set of units that go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from prunerecover.budget import Budget
from prunerecover.macs import count_macs
from prunerecover.units import Unit


def select(
    model: nn.Module, units: Sequence[Unit], importance: Mapping[str, float], budget: Budget, example: Any
) -> list[Unit]:
    """Return the least important units of each kind that meet the budget; ties go by depth.

    Budgets in shares of MACs or parameters take units in order of importance per cost until the share is reached.

    Raises:
        ValueError: If more is asked for than there is.
    """
    ranked = sorted(units, key=lambda u: importance[u.name])
    if budget.remove is None and budget.ratio is None:
        return _by_cost(model, ranked, importance, budget, example)
    counts = budget.counts({kind: sum(u.kind == kind for u in units) for kind in {u.kind for u in units}})
    return [u for kind, n in counts.items() for u in [u for u in ranked if u.kind == kind][:n]]
