"""Algebra of adjacent linear maps: W2 (s * (W1 x + b1) + t) + b2 as one W x + b, in double precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prunerecover.edits import Merge
from prunerecover.replacements import Affine, SlopeBias
from prunerecover.structure import get_module


def linear_shape(linear: nn.Module) -> tuple[int, int]:
    """Return (in, out) features of an `nn.Linear`, or of transformers' `Conv1D`, which stores its weight transposed."""
    rows, columns = linear.get_parameter("weight").shape
    return (rows, columns) if _is_transposed(linear) else (columns, rows)


def matrix_and_bias(linear: nn.Module) -> tuple[Tensor, Tensor]:
    """Return W `(out, in)` and b `(out,)` of a linear map in float64; b is zero where there is none."""
    weight = linear.get_parameter("weight").detach().double()
    weight = weight.T if _is_transposed(linear) else weight
    bias = linear.bias.detach().double() if isinstance(linear.bias, Tensor) else weight.new_zeros(weight.shape[0])
    return weight, bias


def merged_linear(model: nn.Module, edit: Merge) -> nn.Module:
    """Compute the single linear map that a merge leaves; the model is not changed.

    With n the normalised input without its affine part (g, beta), SlopeBias (s, t) and LayerScale gamma:
    W = gamma W2 s W1 g and b = gamma (W2 (s (W1 beta + b1) + t) + b2).

    Raises:
        ValueError: If something between is not linear.
    """
    first = get_module(model, edit.into)
    _check_linear(edit.into, first)
    weight, bias = matrix_and_bias(first)
    if edit.norm is not None:
        gain, shift = norm_affine(get_module(model, edit.norm))
        bias = bias + weight @ shift
        weight = weight * gain
    for path in edit.from_:
        module = get_module(model, path)
        if isinstance(module, SlopeBias):
            weight = module.slope.detach().double()[:, None] * weight
            bias = module.slope.detach().double() * bias + module.bias.detach().double()
        elif path != edit.into and not isinstance(module, nn.Identity | nn.Dropout):
            _check_linear(path, module)
            outer, outer_bias = matrix_and_bias(module)
            weight, bias = outer @ weight, outer @ bias + outer_bias
    if edit.scale is not None:
        gamma = get_module(model, edit.scale).get_parameter("gamma").detach().double()
        weight, bias = gamma[:, None] * weight, gamma * bias
    return _linear_like(first, weight, bias)


def norm_affine(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return gain and shift `(C,)` of a LayerNorm in float64."""
    gain = norm.get_parameter("weight").detach().double()
    return gain, norm.bias.detach().double() if isinstance(norm.bias, Tensor) else torch.zeros_like(gain)


def has_affine(norm: nn.Module) -> bool:
    """Whether a module is a LayerNorm with an affine part that `merged_linear` can fold."""
    return isinstance(norm, nn.LayerNorm) and norm.weight is not None


def without_affine(norm: nn.Module) -> nn.LayerNorm:
    """Return the same LayerNorm without its affine part."""
    assert isinstance(norm, nn.LayerNorm)
    return nn.LayerNorm(norm.normalized_shape, eps=norm.eps, elementwise_affine=False)


def _check_linear(path: str, module: nn.Module) -> None:
    if not (isinstance(module, nn.Linear | Affine) or _is_transposed(module)):
        raise ValueError(
            f"Expected only linear maps to merge, but '{path}' is a {type(module).__name__}. "
            "Remove the activation between the linears first."
        )


def _linear_like(first: nn.Module, weight: Tensor, bias: Tensor) -> nn.Module:
    outputs, inputs = weight.shape
    new = Affine(outputs, first.returns) if isinstance(first, Affine) else nn.Linear(inputs, outputs, device="meta")
    new.weight = nn.Parameter(weight)
    new.bias = nn.Parameter(bias)
    return new


def _is_transposed(linear: nn.Module) -> bool:
    return type(linear).__name__ == "Conv1D"
