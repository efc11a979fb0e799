"""Fold adjacent linear maps into one: W2 (s * (W1 x + b1) + t) + b2 as W x + b, in double precision."""

from __future__ import annotations

from torch import Tensor, nn

from prunerecover.model.linears import check_plain, is_transposed, matrix_and_bias, norm_affine
from prunerecover.model.paths import get_module
from prunerecover.model.replacements import Affine, PassThrough, SlopeBias
from prunerecover.plan.edits import Merge


def merged_linear(model: nn.Module, edit: Merge) -> nn.Module:
    """Compute the single linear map that a merge leaves; the model is not changed.

    With n the normalised input without its affine part (g, beta), SlopeBias (s, t) and LayerScale gamma:
    W = gamma W2 s W1 g and b = gamma (W2 (s (W1 beta + b1) + t) + b2).

    Raises:
        ValueError: If something between is not linear, or computes its weights.
    """
    first = get_module(model, edit.into)
    for path in filter(None, (edit.into, *edit.from_, edit.norm)):
        check_plain(path, get_module(model, path))
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
        elif path != edit.into and not isinstance(module, nn.Identity | nn.Dropout | PassThrough):
            _check_linear(path, module)
            outer, outer_bias = matrix_and_bias(module)
            weight, bias = outer @ weight, outer @ bias + outer_bias
    if edit.scale is not None:
        gamma = get_module(model, edit.scale).get_parameter("gamma").detach().double()
        weight, bias = gamma[:, None] * weight, gamma * bias
    return _linear_like(first, weight, bias)


def _check_linear(path: str, module: nn.Module) -> None:
    if not (isinstance(module, nn.Linear | Affine) or is_transposed(module)):
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
