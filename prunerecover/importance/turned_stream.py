"""Importances by the turn of the residual stream at a unit, token by token.

Block influence: ShortGPT (Men et al. 2024, arXiv 2403.03853), 1 - E[cos(x_l, x_{l+1})], for blocks; here also for
single branches. Angular distance: Gromov et al. 2024 (arXiv 2403.17887), arccos(cos(x_l, x_{l+1})) / pi. Gromov et al.
take the last token of runs of blocks (as `plan_depth(..., search="run")`); here single units take the mean over all
tokens, because a classifier may read any token. Both compare the stream before a unit with the stream after the unit.

The angle of the block's output compares the output with and without a unit: units without a stream, such as layers,
have this angle, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from prunerecover.importance.context import Context
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.model.batches import ModelInputs, as_inputs, call, is_padding
from prunerecover.model.evaluation import device_of, evaluating
from prunerecover.model.hooks import recording, removed_after
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.units import Unit


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
    sums, tokens = dict[str, Tensor](), dict.fromkeys(context.shapes, 0)
    for batch in context.batches:
        inputs = as_inputs(batch).to(device_of(context.model))
        calls = _calls(unwrap(context.model), {unit.block for unit in context.units}, inputs)

        def turned(network: nn.Module, unit: Unit, inputs: ModelInputs = inputs, calls: Calls = calls) -> float:
            seen = calls[unit.block]
            without = seen.input if unit.kind == "block" else seen.again(get_module(network, unit.block))
            angles = _angle(_cosine(seen.output, without))
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


@dataclass
class _Call:
    """Arguments and output of the last call of a block."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor

    @property
    def input(self) -> Tensor:
        """First argument."""
        value = self.args[0] if self.args else next(iter(self.kwargs.values()))
        assert isinstance(value, Tensor)
        return value

    def again(self, block: nn.Module) -> Tensor:
        """Return the output of another block for the same arguments."""
        args, kwargs = _cloned((self.args, self.kwargs))
        with evaluating(block):
            output: Tensor = _first(block(*args, **kwargs))
            return output


Calls = dict[str, _Call]


def _calls(network: nn.Module, blocks: Collection[str], batch: ModelInputs) -> Calls:
    """Run a network, and return the calls of the blocks."""
    given: dict[str, Any] = {}
    calls: Calls = {}
    with ExitStack() as stack:
        for name in blocks:

            def enter(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                given[name] = _cloned((args, kwargs))

            def leave(_: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                calls[name] = _Call(given[name][0], given[name][1], _cloned(_first(output)))

            module = get_module(network, name)
            handles = (
                module.register_forward_pre_hook(enter, with_kwargs=True),
                module.register_forward_hook(leave, with_kwargs=True),
            )
            stack.enter_context(removed_after(*handles))
        stack.enter_context(evaluating(network))
        call(network, batch)
    return calls


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def _cloned(values: Any) -> Any:
    """Copy tensors, as a block may write into its arguments."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, values)
