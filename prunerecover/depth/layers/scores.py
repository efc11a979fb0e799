"""Importances of units found on the graph: of the weights that go with a unit, or of the output without it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.depth.layers.variants import Variants
from prunerecover.importance.context import Loss
from prunerecover.importance.losses import loss_of
from prunerecover.model.batches import ModelInputs, as_inputs, call, is_padding
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import evaluating
from prunerecover.model.paths import get_module
from prunerecover.plan.units import Unit
from prunerecover.surgery.apply_edits import Applied, apply_edits

Scores = dict[str, float]


@dataclass(frozen=True)
class GraphContext:
    """What units are scored in.

    Attributes:
        variants: Judge sets of units.
        units: To score.
        gone: Units that went before: the others are scored on the pruned network.
        batches: Calibration batches as the user gave them, labels included.
        loss: `loss(model, batch) -> scalar`.
        seed: Of everything random.
    """

    variants: Variants
    units: Sequence[Unit]
    gone: tuple[Unit, ...] = ()
    batches: Sequence[Any] = ()
    loss: Loss | None = None
    seed: int = 0


def output_divergence(context: GraphContext) -> Scores:
    """How far the output is from the dense network's without each unit."""
    return {u.name: _able(lambda u=u: context.variants.divergence([*context.gone, u])) for u in context.units}  # type: ignore[misc]


def taylor(context: GraphContext) -> Scores:
    """Sum (w dL/dw)^2 over the unit's parameters and the sections that are narrowed with it.

    Molchanov et al. 2019 (arXiv 1906.10771), with squares as in the thesis on fine-grained depth pruning.
    """
    assert context.loss is not None
    network, applied = _network(context)
    parameters = dict(network.named_parameters())
    flags = [p.requires_grad for p in parameters.values()]
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    with evaluating(network):
        for parameter in parameters.values():
            parameter.requires_grad_(True)
        for batch in context.batches:
            with torch.enable_grad():
                found = torch.autograd.grad(
                    loss_of(network, batch, context.loss), list(parameters.values()), allow_unused=True
                )
            for name, gradient in zip(parameters, found, strict=True):
                if gradient is not None:
                    sums[name] += gradient * as_inputs(batch).n_samples
    for parameter, flag in zip(parameters.values(), flags, strict=True):
        parameter.requires_grad_(flag)
    total = sum(as_inputs(batch).n_samples for batch in context.batches)
    return _of_weights(
        context,
        applied,
        {name: (p.detach() * sums[name] / total).square() for name, p in parameters.items()},
        parameters,
    )


def magnitude(context: GraphContext) -> Scores:
    """Sum w^2 over the unit's parameters and the sections that are narrowed with it."""
    network, applied = _network(context)
    parameters = dict(network.named_parameters())
    return _of_weights(context, applied, {name: p.detach().square() for name, p in parameters.items()}, parameters)


def random(context: GraphContext) -> Scores:
    """Draw numbers."""
    generator = torch.Generator().manual_seed(context.seed)
    drawn = torch.rand(len(context.units), generator=generator, dtype=torch.float64).tolist()
    return dict(zip((unit.name for unit in context.units), drawn, strict=True))


def cross_entropy(context: GraphContext) -> Scores:
    """The loss without each unit."""
    assert context.loss is not None
    loss = context.loss
    return {u.name: _able(lambda u=u: _loss_without(context, u, loss)) for u in context.units}  # type: ignore[misc]


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
    network, _ = _network(context)
    sums, tokens = dict.fromkeys((unit.name for unit in context.units), 0.0), dict.fromkeys(context.units, 0)
    for batch in context.variants.batches:
        with evaluating(network):
            calls = _calls(network, {unit.block for unit in context.units}, batch)
        for unit in context.units:
            with suppress(NotRemovable):
                angles = _angles(context, unit, calls[unit.block])
                kept = angles[~is_padding(batch, angles)]
                sums[unit.name] += float(kept.sum())
                tokens[unit] += kept.numel()
    return {unit.name: sums[unit.name] / n if n else math.inf for unit, n in tokens.items()}


IMPORTANCES: dict[str, Callable[[GraphContext], Scores]] = {
    "output_divergence": output_divergence,
    "taylor": taylor,
    "magnitude": magnitude,
    "random": random,
    "cross_entropy": cross_entropy,
    "angular_distance": angular_distance,
}


def _able(score: Callable[[], float]) -> float:
    try:
        return score()
    except NotRemovable:
        return math.inf


def _network(context: GraphContext, *more: Unit) -> tuple[nn.Module, Applied]:
    removals = context.variants.removals
    network = share_copy(removals.model)
    return network, apply_edits(network, removals.edits([*context.gone, *more], in_place=True))


def _of_weights(
    context: GraphContext, applied: Applied, values: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]
) -> Scores:
    """Return, by unit, the sum of the values of all weights that leave with it."""
    dense = {id(p): _spread(values[name], p, applied) for name, p in parameters.items()}
    by_origin = {id(applied.cuts[p][0]) if p in applied.cuts else id(p): dense[id(p)] for p in parameters.values()}
    total = sum(float(value.sum()) for value in by_origin.values())

    def leaving(unit: Unit) -> float:
        network, cut = _network(context, unit)
        left = 0.0
        for parameter in network.parameters():
            old, cuts = cut.cuts.get(parameter, (parameter, ()))
            value = by_origin.get(id(old))
            if value is not None:
                for one in cuts:
                    value = one.of(value)
                left += float(value.sum())
        return total - left

    return {unit.name: _able(lambda unit=unit: leaving(unit)) for unit in context.units}  # type: ignore[misc]


def _spread(value: Tensor, parameter: nn.Parameter, applied: Applied) -> Tensor:
    """Put the values of a narrowed parameter where its entries were in the dense one; 0 elsewhere."""
    if parameter not in applied.cuts:
        return value
    old, cuts = applied.cuts[parameter]
    shape = list(value.shape)
    for cut in reversed(cuts):
        shape[cut.dim] = old.shape[cut.dim]
        value = torch.zeros(shape, dtype=value.dtype, device=value.device).index_copy(
            cut.dim, cut.kept.to(value.device), value
        )
    return value


def _loss_without(context: GraphContext, unit: Unit, loss: Loss) -> float:
    network, _ = _network(context, unit)
    total, samples = 0.0, 0
    with evaluating(network), torch.enable_grad():
        for batch in context.batches:
            n = as_inputs(batch).n_samples
            total += float(loss_of(network, batch, loss).detach()) * n
            samples += n
    return total / samples


def _angles(context: GraphContext, unit: Unit, seen: _Call) -> Tensor:
    """Return the angle between what a block put out and what it puts out without a unit, per token."""
    network, _ = _network(context, unit)
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
    try:
        call(network, batch)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _cloned(values: Any) -> Any:
    """Copy tensors, which a block may write into."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, values)
