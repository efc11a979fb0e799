"""Angular distance of units found on the graph: by how much a block's output turns without a unit."""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.depth.layers.scoring import GraphContext, Scores
from prunerecover.model.batches import ModelInputs, call, is_padding
from prunerecover.model.evaluation import evaluating
from prunerecover.model.hooks import removed_after
from prunerecover.model.paths import get_module
from prunerecover.plan.units import Unit


def angular_distance(context: GraphContext) -> Scores:
    """Angle between the output of the unit's block with and without the unit, over pi, mean over all tokens.

    Raises:
        ValueError: If a unit is in no block.
    """
    outside = next((u for u in context.units if not u.block), None)
    if outside is not None:
        raise ValueError(
            f"Expected units inside blocks for importance='angular_distance', but '{outside.name}' is in none. Use "
            "'output_divergence'."
        )
    network, _ = context.without()
    sums, tokens = dict.fromkeys((unit.name for unit in context.units), 0.0), dict.fromkeys(context.units, 0)
    for batch in context.samples:
        with evaluating(network):
            calls = _calls(network, {unit.block for unit in context.units}, batch)
        for unit in context.units:
            with suppress(NotRemovable):
                angles = _angles(context, unit, calls[unit.block])
                kept = angles[~is_padding(batch, angles)]
                sums[unit.name] += float(kept.sum())
                tokens[unit] += kept.numel()
    return {unit.name: sums[unit.name] / n if n else math.inf for unit, n in tokens.items()}


def _angles(context: GraphContext, unit: Unit, seen: _Call) -> Tensor:
    """Return the angle between what a block put out and what it puts out without a unit, per token."""
    network, _ = context.without(unit)
    block = get_module(network, unit.block)
    args, kwargs = _cloned((seen.args, seen.kwargs))
    with evaluating(block):
        output = block(*args, **kwargs)
    output = output[0] if isinstance(output, tuple) else output
    cosine = torch.cosine_similarity(seen.output.double(), output.double(), dim=-1)
    return cosine.flatten().clamp(-1, 1).arccos() / math.pi


@dataclass
class _Call:
    """What a block was last called with, and what it put out."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor


def _calls(network: nn.Module, blocks: Collection[str], batch: ModelInputs) -> dict[str, _Call]:
    """Run a network, and return how its blocks were called."""
    modules, given, calls = {block: get_module(network, block) for block in blocks}, {}, {}
    handles = []
    for name, module in modules.items():

        def enter(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            given[name] = _cloned((args, kwargs))

        def leave(_: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
            args, kwargs = given[name]
            calls[name] = _Call(args, kwargs, _cloned(output[0] if isinstance(output, tuple) else output))

        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave, with_kwargs=True))
    with removed_after(*handles):
        call(network, batch)
    return calls


def _cloned(values: Any) -> Any:
    """Copy tensors, which a block may write into."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, values)
