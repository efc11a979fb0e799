"""Importances by the turn of the residual stream at a unit, token by token.

Block influence: ShortGPT (Men et al. 2024, arXiv 2403.03853), 1 - E[cos(x_l, x_{l+1})], for blocks; here also for
single branches. Angular distance: Gromov et al. 2024 (arXiv 2403.17887), arccos(cos(x_l, x_{l+1})) / pi. Gromov et al.
take the last token of runs of blocks (as `plan_depth(..., search="run")`); here single units take the mean over all
tokens, because a classifier may read any token. Both compare the stream before a unit with the stream after the unit.

The angle of the block's output compares the output with and without a unit: units without a stream, such as layers,
have this angle, too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from prunerecover.importance.context import Context
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.model.batches import ModelInputs, as_inputs, call, is_padding
from prunerecover.model.evaluation import device_of, evaluating
from prunerecover.model.hooks import Called, calls_of, first_tensor, recording
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.units import Unit

Calls = dict[str, tuple[Called, Tensor]]  # arguments and output, by block


def block_influence(context: Context) -> Scores:
    """Return 1 - mean cosine of the residual stream before and after each unit, 0 to 2. Higher means keep."""
    return _mean_over_tokens(context, lambda cosine: 1 - cosine, "block_influence")


def angular_distance(context: Context) -> Scores:
    """Return the mean angle, in units of pi, between the residual stream before and after. Higher means keep."""
    return _mean_over_tokens(context, _angle, "angular_distance")


def block_output_angle(context: Context) -> Scores:
    """Return the mean angle, in units of pi, between a block's outputs with and without each unit inside the block.

    Raises:
        ValueError: If a unit is in no block.
    """
    context = context.require_units("block_output_angle")
    outside = next((u for u in context.units if not u.block), None)
    if outside is not None:
        raise ValueError(
            f"Expected units inside blocks for importance='block_output_angle', but '{outside.name}' is in none. Use "
            "'output_divergence'."
        )
    model, sums, tokens = unwrap(context.model), dict[str, Tensor](), dict.fromkeys(context.shapes, 0)
    for batch in context.batches:
        inputs = as_inputs(batch).to(device_of(model))
        with evaluating(model):
            called = calls_of(model, {unit.block for unit in context.units}, inputs)
        calls = {path: (one, _output(get_module(model, path), one)) for path, one in called.items()}

        def turned(network: nn.Module, unit: Unit, inputs: ModelInputs = inputs, calls: Calls = calls) -> float:
            seen, output = calls[unit.block]
            without = first_tensor(*seen) if unit.kind == "block" else _output(get_module(network, unit.block), seen)
            angles = _angle(_cosine(output, without))
            kept = angles[~is_padding(inputs, angles)]
            tokens[unit.name] += kept.numel()
            return float(kept.sum())

        found = context.each_without(turned)
        sums = {name: value + sums.get(name, 0.0) for name, value in found.items()}
    return {name: total / max(tokens[name], 1) for name, total in sums.items()}


def _mean_over_tokens(context: Context, distance: Callable[[Tensor], Tensor], name: str) -> Scores:
    """Average `distance(cosine)` of the residual stream before and after each unit over all tokens but padding.

    Args:
        context: Context of blocks, attentions and MLPs; the model runs in evaluation mode.
        distance: Function from cosines `(T,)` to distances.
        name: Name of the importance, for the message.

    Raises:
        ValueError: If a unit does not act on the residual stream: an activation or a layer.
    """
    context = context.require_units(name)
    model = unwrap(context.model)
    wrong = next((u for u in context.units if u.kind in ("activation", "layer")), None)
    if wrong is not None:
        raise ValueError(
            f"Expected units that act on the residual stream (block, attention, mlp) for importance='{name}', but got "
            f"'{wrong.name}' ({wrong.kind}). Use 'block_output_angle' or 'output_divergence'."
        )
    branches = {unit.name: context.branch(unit, name) for unit in context.units}
    ends = {name: (name, name) if branch is None else (branch.stream, branch.last) for name, branch in branches.items()}
    modules = {path: get_module(model, path) for paths in ends.values() for path in paths}
    sums, tokens = dict.fromkeys(branches, 0.0), 0
    with evaluating(model):
        for batch in context.batches:
            inputs = as_inputs(batch).to(device_of(model))
            with recording(modules) as seen:
                call(model, inputs)
            for unit, branch in branches.items():
                before, after = seen[f"{ends[unit][0]}.in"].double(), seen[f"{ends[unit][1]}.out"].double()
                cosine = _cosine(before, after if branch is None else before + branch.scale * after)
                kept = cosine[~is_padding(inputs, cosine)]
                sums[unit] += float(distance(kept).sum())
            tokens += kept.numel()
    return {unit: torch.tensor(total / max(tokens, 1), dtype=torch.float64) for unit, total in sums.items()}


def _cosine(before: Tensor, after: Tensor) -> Tensor:
    return torch.cosine_similarity(before.double(), after.double(), dim=-1).flatten().clamp(-1, 1)


def _angle(cosine: Tensor) -> Tensor:
    return cosine.arccos() / math.pi


def _output(block: nn.Module, called: Called) -> Tensor:
    """Return the output of a block for the arguments of a call."""
    args, kwargs = copy.deepcopy(called)
    with evaluating(block):
        output = block(*args, **kwargs)
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found
