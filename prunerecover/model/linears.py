"""Algebra of adjacent linear maps: W2 (s * (W1 x + b1) + t) + b2 as one W x + b, in double precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prunerecover.model.checks import check_unquantised, computed_weights
from prunerecover.model.paths import get_module
from prunerecover.refusal import Refusal


def linear_shape(linear: nn.Module) -> tuple[int, int]:
    """Return (in, out) features of an `nn.Linear`, or of transformers' `Conv1D` with its transposed weight."""
    rows, columns = linear.get_parameter("weight").shape
    return (rows, columns) if is_transposed(linear) else (columns, rows)


def matrix_and_bias(linear: nn.Module) -> tuple[Tensor, Tensor]:
    """Return W `(out, in)` and b `(out,)` of a linear map in float64; b is zero for a linear without bias."""
    weight = linear.get_parameter("weight").detach().double()
    weight = weight.T if is_transposed(linear) else weight
    bias = linear.bias.detach().double() if isinstance(linear.bias, Tensor) else weight.new_zeros(weight.shape[0])
    return weight, bias


def matrix_and_vector(*modules: nn.Module) -> tuple[nn.Parameter, nn.Parameter]:
    """Return the first matrix and the first vector among modules' parameters, as models for new parameters.

    The first module with a matrix counts, else the first with parameters. The module's first parameter replaces a
    missing matrix, the matrix a missing vector.

    Raises:
        ValueError: If there is no parameter at all.
    """
    held = [list(module.parameters()) for module in modules]
    own = next((one for one in held if any(p.ndim > 1 for p in one)), next(filter(None, held), None))
    if own is None:
        raise ValueError(
            f"Expected modules with parameters where something fitted takes their place, but "
            f"{type(modules[0]).__name__} has none. Was the plan edited, or made for another model?"
        )
    matrix = next((p for p in own if p.ndim > 1), own[0])
    return matrix, next((p for p in own if p.ndim == 1), matrix)


def is_linear(module: nn.Module) -> bool:
    """Whether a module is an `nn.Linear`, or transformers' `Conv1D`, without subclasses of `nn.Linear`."""
    return type(module) is nn.Linear or is_transposed(module)


def check_plain(path: str, module: nn.Module) -> None:
    """Raise ValueError if a module computes its weight or bias from other tensors: a merge would lose the tensors.

    Args:
        path: Path of the module, for the message.
        module: Linear or norm.
    """
    for weight in computed_weights(module):
        raise Refusal(
            "plain parameters to merge",
            f"the {weight.name} of '{path}' ({type(module).__name__}) is computed by {weight.how}, which would be lost",
            f"{weight.way_out}.",
        )
    check_unquantised(module, f"of '{path}' to merge", ", and would be rounded anew. Merge first, then quantise.")


def norm_affine(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return gain and shift `(C,)` of a LayerNorm in float64."""
    gain = norm.get_parameter("weight").detach().double()
    return gain, norm.bias.detach().double() if isinstance(norm.bias, Tensor) else torch.zeros_like(gain)


def has_affine(norm: nn.Module) -> bool:
    """Whether a module is a LayerNorm with an affine part for `merged_linear` to fold."""
    return isinstance(norm, nn.LayerNorm) and norm.weight is not None


def without_affine(norm: nn.Module) -> nn.LayerNorm:
    """Return the same LayerNorm without the affine part."""
    assert isinstance(norm, nn.LayerNorm)
    return nn.LayerNorm(norm.normalized_shape, eps=norm.eps, elementwise_affine=False)


def is_transposed(linear: nn.Module) -> bool:
    """Whether a module is transformers' `Conv1D`, with a weight `(in, out)`."""
    return type(linear).__name__ == "Conv1D"


def through_last_matrix(model: nn.Module, paths: tuple[str, ...]) -> tuple[str, ...]:
    """The modules up to the last matrix of a branch; later LayerScale and dropout stay beside an identity."""
    matrices = [i for i, path in enumerate(paths) if any(p.ndim > 1 for p in get_module(model, path).parameters())]
    return paths[: max(matrices, default=-1) + 1]
