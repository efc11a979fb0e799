"""Importances of units found on the graph by the weights that leave with them, sections of other layers included."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from prunerecover.depth.layers.scoring import GraphContext, Scores
from prunerecover.importance.parameters import unit_parameters
from prunerecover.importance.taylor import mean_gradients, trainable
from prunerecover.model.evaluation import evaluating
from prunerecover.plan.units import Unit
from prunerecover.surgery.apply_edits import Applied


def taylor(context: GraphContext) -> Scores:
    """Sum (w dL/dw)^2 over the unit's parameters and the sections that are narrowed with it.

    Molchanov et al. 2019 (arXiv 1906.10771), with squares as in the thesis on fine-grained depth pruning.
    """
    assert context.loss is not None
    network, applied = context.without()
    parameters = dict(network.named_parameters())
    with evaluating(network), trainable(list(parameters.values())):
        gradients = mean_gradients(network, list(parameters.values()), context.batches, context.loss)
    found = zip(parameters.items(), gradients, strict=True)
    return _of_weights(context, applied, {name: (p.detach() * g).square() for (name, p), g in found}, parameters)


def magnitude(context: GraphContext) -> Scores:
    """Sum w^2 over the unit's parameters and the sections that are narrowed with it."""
    network, applied = context.without()
    parameters = dict(network.named_parameters())
    return _of_weights(context, applied, {name: p.detach().square() for name, p in parameters.items()}, parameters)


def _of_weights(
    context: GraphContext, applied: Applied, values: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]
) -> Scores:
    """Return, by unit, the sum of the values of all weights that leave with it; of an activation, those around it."""
    dense = {id(p): _spread(values[name], p, applied) for name, p in parameters.items()}
    by_origin = {id(applied.cuts[p][0]) if p in applied.cuts else id(p): dense[id(p)] for p in parameters.values()}
    total = sum(float(value.sum()) for value in by_origin.values())

    def leaving(unit: Unit) -> float:
        network, cut = context.without(unit)
        around = unit_parameters(network, [unit])[unit.name] if unit.kind == "activation" else []
        left = 0.0
        for parameter in set(network.parameters()) - set(around):
            old, cuts = cut.cuts.get(parameter, (parameter, ()))
            value = by_origin.get(id(old))
            if value is not None:
                for one in cuts:
                    value = one.of(value)
                left += float(value.sum())
        return total - left

    return context.score_each(leaving)


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
