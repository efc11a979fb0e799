"""Importance by the size of the weights, which needs no data.

Shortened LLaMA (arXiv 2402.02834, "Mag"): sum |w| over the unit. For activations over the two linears around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from prunerecover.importance.parameters import unit_parameters
from prunerecover.model.paths import unwrap
from prunerecover.plan.units import Unit


def magnitude(model: nn.Module, units: Sequence[Unit], batches: Any = ()) -> dict[str, float]:
    """Rank units by sum |w|; `batches` are not read. Higher means keep."""
    owned = unit_parameters(unwrap(model), units)
    return {name: sum(float(p.detach().double().abs().sum()) for p in parameters) for name, parameters in owned.items()}
