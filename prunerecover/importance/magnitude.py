"""Importance by the size of the weights, which needs no data.

Shortened LLaMA (arXiv 2402.02834, "Mag"): sum |w| over the unit. For activations over the two linears around it.
"""

from __future__ import annotations

from torch.nn import Parameter

from prunerecover.importance.context import DepthContext, UnitScores
from prunerecover.importance.parameters import unit_parameters
from prunerecover.model.hashing import is_quantised
from prunerecover.model.paths import unwrap


def magnitude(context: DepthContext) -> UnitScores:
    """Rank units by sum |w|; no batch is read. Higher means keep."""
    owned = unit_parameters(unwrap(context.model), context.units)
    return {name: sum(map(_size, parameters)) for name, parameters in owned.items()}


def _size(parameter: Parameter) -> float:
    values = parameter.detach()
    return float((values.dequantize() if is_quantised(values) else values).double().abs().sum())
