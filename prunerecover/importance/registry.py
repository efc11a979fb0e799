"""Registry of importances by name; plan functions also take callables.

Several importances are computed together: all streamed ones share a pass over the batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from prunerecover.importance.context import Context, Dimension, Importance
from prunerecover.importance.data_free import l2_norm, magnitude, random
from prunerecover.importance.experts import reap, reap_normalised, routing
from prunerecover.importance.first_order import gate_taylor, r_score, squared_taylor, taylor
from prunerecover.importance.gate_gradient import gate_gradient
from prunerecover.importance.measuring.names import check_new, kind_of_thing, name_of
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.importance.streaming import StreamedImportance, run_together
from prunerecover.importance.torch_pruning import is_torch_pruning, torch_pruning_importance
from prunerecover.importance.turned_stream import angular_distance, block_influence, block_output_angle
from prunerecover.importance.u_score import u_score
from prunerecover.importance.without_unit import cross_entropy, output_divergence
from prunerecover.model.evaluation import evaluating, uncompiled


@dataclass(frozen=True)
class RegisteredImportance:
    """An importance with the facts for planning.

    Attributes:
        name: Name in plans and messages.
        compute: Function from a context to the score of every name; higher means keep.
        needs_loss: Whether the function raises without a loss.
        comparable: Whether scores compare across kinds of units of depth; a budget in a share of cost needs comparable
            scores.
        of: Dimension of the scored units, "depth" or "width"; None: both.
    """

    name: str
    compute: Importance
    needs_loss: bool = False
    comparable: bool = False
    of: Dimension | None = None

    def __call__(self, context: Context) -> Scores:
        """Return the score of every unit or group; see `compute_importances`."""
        return compute_importances(context, [self])[0]


IMPORTANCES = {
    entry.name: entry
    for entry in (
        RegisteredImportance("output_divergence", output_divergence, comparable=True, of="depth"),
        RegisteredImportance("cross_entropy", cross_entropy, needs_loss=True, comparable=True, of="depth"),
        RegisteredImportance("gate_gradient", gate_gradient, needs_loss=True, of="depth"),
        RegisteredImportance("block_influence", block_influence, of="depth"),
        RegisteredImportance("angular_distance", angular_distance, of="depth"),
        RegisteredImportance("block_output_angle", block_output_angle, of="depth"),
        RegisteredImportance("taylor", taylor, needs_loss=True),
        RegisteredImportance("squared_taylor", squared_taylor, needs_loss=True),
        RegisteredImportance("r_score", r_score, needs_loss=True),
        RegisteredImportance("magnitude", magnitude),
        RegisteredImportance("l2_norm", l2_norm),
        RegisteredImportance("random", random),
        RegisteredImportance("gate_taylor", gate_taylor, needs_loss=True, of="width"),
        RegisteredImportance("u_score", u_score, of="width"),
        RegisteredImportance("routing", routing, of="width"),
        RegisteredImportance("reap", reap, of="width"),
        RegisteredImportance("reap_normalised", reap_normalised, of="width"),
        RegisteredImportance(
            "group_taylor", torch_pruning_importance("GroupTaylorImportance"), needs_loss=True, of="width"
        ),
        RegisteredImportance("group_magnitude", torch_pruning_importance("GroupMagnitudeImportance"), of="width"),
        RegisteredImportance("lamp", torch_pruning_importance("LAMPImportance"), of="width"),
    )
}
importances: Mapping[str, RegisteredImportance] = MappingProxyType(IMPORTANCES)
"""All importances by name, including importances added by `register_importance`; read-only."""


def register_importance(
    name: str,
    compute: Importance,
    *,
    needs_loss: bool = False,
    comparable: bool = True,
    of: Dimension | None = None,
) -> RegisteredImportance:
    """Register a callable for `importance=name` in plan functions, callbacks, recipes and the command line.

    Args:
        name: New name.
        compute: Function `(context) -> {name: score}`, higher means keep: a number per unit of depth, a tensor
            `(size,)` per group of width; also a `StreamedImportance`, which shares its pass over the batches, or an
            importance of torch-pruning.
        needs_loss: Whether the function reads `context.loss`.
        comparable: Whether scores compare across kinds of units of depth; a budget in a share of cost needs comparable
            scores.
        of: Dimension, "depth" or "width", for a function of one dimension alone.

    Raises:
        ValueError: If the name belongs to another importance.
        TypeError: If the name is empty or no string, or `compute` is no callable.
    """
    check_new("importance", name, compute)
    if name in IMPORTANCES and IMPORTANCES[name].compute is not compute:
        raise ValueError(f"Expected a name that no importance has, but '{name}' is taken. Choose another.")
    IMPORTANCES[name] = RegisteredImportance(name, compute, needs_loss, comparable, of)
    return IMPORTANCES[name]


def importance_of(
    importance: str | Importance, of: Dimension | None = None, role: str = "argument importance"
) -> RegisteredImportance:
    """Return the entry of a name, or a new entry for a callable, with scores taken to compare across kinds.

    Args:
        importance: Name, callable, importance of torch-pruning, or entry of the registry.
        of: Dimension of the plan; None: either.
        role: Name of the argument, for messages.

    Raises:
        ValueError: If no importance of the dimension has the name.
        TypeError: If the argument is neither a name nor a callable, or a class instead of an importance.
    """
    if isinstance(importance, RegisteredImportance):
        return importance
    if isinstance(importance, str):
        known = [name for name, entry in IMPORTANCES.items() if None in (of, entry.of) or entry.of == of]
        if importance not in known:
            raise ValueError(
                f"Expected {role} to be one of {', '.join(known)}, or a callable (context) -> "
                f"{{name: score}}, but got '{importance}'{_elsewhere(importance)}."
            )
        return IMPORTANCES[importance]
    if not callable(importance) or isinstance(importance, type):
        raise TypeError(
            f"Expected {role} to be a name or a callable (context) -> {{name: score}}, but got "
            f"{kind_of_thing(importance)}."
        )
    return RegisteredImportance(name_of(importance), importance, comparable=True)


def compute_importances(context: Context, importances: Sequence[str | Importance]) -> list[Scores]:
    """Compute several importances; streamed ones share one forward (and backward) pass over the batches.

    Args:
        context: Units, and data to score the units on. The model runs in evaluation mode, and is bit-identical
            afterwards.
        importances: Names, or callables.

    Returns:
        Scores of each importance, by unit `()` or by group `(size,)`: float64, on the CPU. Higher means keep.

    Raises:
        ValueError: If a name is unknown, a loss is missing, a unit or group has no score, or a score is not finite; and
            see each importance.
        TypeError: If a callable returns no mapping of numbers.
    """
    entries = [importance_of(one, context.dimension, "importances") for one in importances]
    for entry in entries:
        if entry.needs_loss:
            context.require_loss(entry.name)
    computed = [_callable(entry) for entry in entries]
    under_way = {i: one.start(context) for i, one in enumerate(computed) if isinstance(one, StreamedImportance)}
    run_together(context, list(under_way.values()))
    found: list[Scores] = []
    for i, entry in enumerate(entries):
        scores = under_way[i].scores() if i in under_way else _called(computed[i], context)
        found.append(_checked(scores, entry.name, context))
    return found


def check_finite(scores: Mapping[str, Any], importance: str) -> None:
    """Raise ValueError if a score is NaN or infinite: the order of such scores would be arbitrary.

    Args:
        scores: Numbers or tensors, by name.
        importance: Name of the importance, for the message.

    >>> check_finite({"blocks.0": 1.0}, "magnitude")
    """
    wrong = {name: value for name, value in scores.items() if not torch.as_tensor(value).isfinite().all()}
    if wrong:
        found = ", ".join(f"{name}: {_told(value)}" for name, value in list(wrong.items())[:3])
        raise ValueError(
            f"Expected finite importances from '{importance}', but {len(wrong)} of {len(scores)} are not ({found}). "
            "Check the model's output on the calibration batches for NaN, and compute it in float32."
        )


def _callable(entry: RegisteredImportance) -> Importance:
    return torch_pruning_importance(entry.compute) if is_torch_pruning(entry.compute) else entry.compute


def _called(compute: Importance, context: Context) -> Mapping[str, Any]:
    with evaluating(context.model), uncompiled():
        return compute(context)


def _checked(scores: Any, importance: str, context: Context) -> Scores:
    """Return the finite score of every unit or group in a context, float64, on the CPU."""
    if not isinstance(scores, Mapping):
        raise TypeError(f"Expected '{importance}' to return {{name: score}}, but got {type(scores).__name__}.")
    missing = [name for name in context.shapes if name not in scores]
    if missing:
        raise ValueError(
            f"Expected '{importance}' to return a score for each of {len(context.shapes)}, but "
            f"{', '.join(missing[:3])} {'has' if len(missing) == 1 else 'have'} none. Return {{name: score}} for all "
            "of context.shapes."
        )
    found = {name: _number(scores[name], name, shape, importance) for name, shape in context.shapes.items()}
    check_finite({n: v for n, v in found.items() if not (v.isposinf().all() and context.cannot_go(n))}, importance)
    return found


def _number(value: Any, name: str, shape: tuple[int, ...], importance: str) -> Tensor:
    try:
        found = torch.as_tensor(value).detach().to("cpu", torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"Expected '{importance}' to return {{name: score}}, but got {name}: {type(value).__name__}."
        ) from None
    if found.shape != shape:
        wanted = f"a tensor of shape {shape}, one number per unit," if shape else "one number"
        raise ValueError(
            f"Expected '{importance}' to return {wanted} for '{name}', but got shape {tuple(found.shape)}."
        )
    return found


def _elsewhere(importance: str) -> str:
    entry = IMPORTANCES.get(importance)
    return "" if entry is None else f", which scores units of {entry.of}"


def _told(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) and value.ndim else str(float(value))
