"""Folding of adjacent linear maps into a single map, in double precision.

W2 (s * (W1 x + b1) + t) + b2 becomes W x + b, and a linear absorbs a map of the output: T (W x + b) + t.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from prunerecover.model.linears import check_plain, is_linear, is_transposed, linear_shape, matrix_and_bias, norm_affine
from prunerecover.model.paths import get_module
from prunerecover.model.replacements import Affine, PassThrough, SlopeBias
from prunerecover.plan.edits import Fold, Merge


def merged_linear(model: nn.Module, edit: Merge) -> nn.Module:
    """Compute the single linear map of a merge; the model is not changed.

    With n the normalised input without its affine part (g, beta), SlopeBias (s, t) and LayerScale gamma,

    - W = gamma W2 s W1 g
    - b = gamma (W2 (s (W1 beta + b1) + t) + b2)

    Raises:
        ValueError: If a module between is not linear, or computes its weights.
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


def folded_map(model: nn.Module, edit: Fold, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Return the new values of a linear's parameters, by name; the model is not changed.

    Args:
        model: Network without wrappers.
        edit: Edit with the linear, and the keys of T `(D, D)` and, for a linear with a bias, of t `(D,)`.
        tensors: Values by key. None: only the structure is made, and the result is empty.

    Raises:
        ValueError: If the path holds no plain linear of the right width, or further modules share the weight.
    """
    linear = get_module(model, edit.into)
    if not is_linear(linear):
        raise ValueError(
            f"Expected a linear at '{edit.into}', to fold a map into, but it is a {type(linear).__name__}. Was the "
            "plan made for another model?"
        )
    check_plain(edit.into, linear)
    shared = sum(p is linear.weight for m in model.modules() for p in m._parameters.values())
    if shared > 1:
        raise ValueError(
            f"Expected '{edit.into}' to have a weight of its own, to fold a map into, but {shared} modules share it. "
            "Plan with replace='zero'."
        )
    if tensors is None:
        return {}
    names = ("weight", "bias") if isinstance(linear.bias, Tensor) else ("weight",)
    weight, bias = matrix_and_bias(linear)
    values = {key.rpartition(".")[2]: tensors[key].to(weight) for key in edit.tensors}
    width = linear_shape(linear)[1]
    shapes = {"weight": (width, width), "bias": (width,)}
    if sorted(values) != sorted(names) or any(values[name].shape != shapes[name] for name in names):
        raise ValueError(
            f"Expected the {' and '.join(names)} of a map of {width} channels for '{edit.into}', but got "
            f"{', '.join(f'{name} {tuple(value.shape)}' for name, value in values.items())}. Does the .safetensors "
            "file belong to the plan?"
        )
    weight, bias = values["weight"] @ weight, values["weight"] @ bias + values.get("bias", 0)
    new = {"weight": weight.T if is_transposed(linear) else weight, "bias": bias}
    return {name: new[name] for name in names}


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
