"""The residual stream before and after each unit, token by token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from prunerecover.families.describe import describe
from prunerecover.families.layout import Layout
from prunerecover.importance.context import DepthContext, UnitScores
from prunerecover.model.batches import as_inputs, call, is_padding
from prunerecover.model.evaluation import device_of, evaluating
from prunerecover.model.hooks import recording
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.units import Unit


def mean_over_tokens(context: DepthContext, distance: Callable[[Tensor], Tensor], name: str) -> UnitScores:
    """Average `distance(cosine)` of the residual stream before and after each unit over all tokens but padding.

    Args:
        context: Its units are blocks, attentions and MLPs; the model is judged in evaluation mode.
        distance: Maps cosines `(T,)` to distances.
        name: Of the importance, for the message.

    Raises:
        ValueError: If a unit is an activation, which does not act on the residual stream.
    """
    model, units = unwrap(context.model), context.units
    wrong = next((u for u in units if u.kind == "activation"), None)
    if wrong is not None:
        raise ValueError(
            f"Expected units that act on the residual stream (block, attention, mlp) for importance='{name}', but got "
            f"'{wrong.name}' (activation). Use 'output_divergence' or 'gate_gradient' for activations."
        )
    layout = describe(model)
    modules = {path: get_module(model, path) for unit in units for path in _paths(layout, unit)}
    sums, tokens = dict.fromkeys((u.name for u in units), 0.0), 0
    with evaluating(model):
        for batch in context.batches:
            inputs = as_inputs(batch).to(device_of(model))
            with recording(modules) as seen:
                call(model, inputs)
            for unit in units:
                cosine = torch.cosine_similarity(*_before_and_after(layout, unit, seen), dim=-1).flatten()
                kept = cosine[~is_padding(inputs, cosine)]
                sums[unit.name] += float(distance(kept.clamp(-1, 1)).sum())
            tokens += kept.numel()
    return {unit: total / max(tokens, 1) for unit, total in sums.items()}


def _paths(layout: Layout, unit: Unit) -> tuple[str, ...]:
    branch = layout.branch(unit.name) if unit.kind != "block" else None
    return (unit.name,) if branch is None else (branch.stream, branch.last)


def _before_and_after(layout: Layout, unit: Unit, seen: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    paths = _paths(layout, unit)
    before = seen[f"{paths[0]}.in"].double()
    after = seen[f"{paths[-1]}.out"].double()
    branch = layout.branch(unit.name) if unit.kind != "block" else None
    return before, after if branch is None else before + branch.scale * after
