"""Importances without data: the size of the weights, and chance, the control for every other importance."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from prunerecover.importance.context import Context
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.model.hashing import is_quantised


def magnitude(context: Context) -> Scores:
    """Rank units by sum |w| over the weights of each unit; no batch is read.

    Filters: Li et al. 2017 (arXiv 1608.08710); blocks: Shortened LLaMA (arXiv 2402.02834, "Mag").
    """
    return context.sum_weights(lambda weight: _values(weight).abs())


def l2_norm(context: Context) -> Scores:
    """Rank units by the root of sum w^2 over the weights of each unit; no batch is read."""
    return {name: total.sqrt() for name, total in context.sum_weights(lambda weight: _values(weight).square()).items()}


def random(context: Context) -> Scores:
    """Draw a number between 0 and 1 for every unit; the global random state is not touched.

    >>> from torch import nn
    >>> from prunerecover.importance.context import DepthContext
    >>> from prunerecover.plan.units import Unit
    >>> context = DepthContext(model=nn.Identity(), units=[Unit("blocks.0", "block", ("blocks.0",), 0)], seed=1)
    >>> random(context) == random(context)
    True
    """
    generator = torch.Generator().manual_seed(context.seed)
    shapes = context.shapes.items()
    return {name: torch.rand(shape, generator=generator, dtype=torch.float64) for name, shape in shapes}


def _values(weight: Parameter) -> Tensor:
    values = weight.detach()
    return (values.dequantize() if is_quantised(values) else values).double()
