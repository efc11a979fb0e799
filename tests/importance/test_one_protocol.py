"""An importance of a name is the same function with the same scores in every planner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.files.every_kind import dense, inputs, loss, rows
from torch import Tensor, nn

import prunerecover
from prunerecover import find_groups, find_units, plan_depth, plan_width
from prunerecover.depth.graph_context import GraphContext
from prunerecover.depth.layers.removals import Removals
from prunerecover.depth.search.objectives import OutputDivergence
from prunerecover.depth.variants import Variants
from prunerecover.graph.trace import trace
from prunerecover.importance.context import DepthContext, WidthContext
from prunerecover.importance.registry import IMPORTANCES, compute_importances
from prunerecover.model.batches import as_inputs
from prunerecover.plan.budget import Budget

PARTS = ("block", "attention", "mlp", "activation")
OF_DEPTH = tuple(name for name, entry in IMPORTANCES.items() if entry.of != "width")
WITHOUT_UNITS = ("output_divergence", "cross_entropy", "block_output_angle")
OF_STREAMS = ("block_influence", "angular_distance")
HOW: dict[str, Any] = {"batches": rows("vit"), "loss": loss}
Entries = list[tuple[Tensor, Tensor]]  # weights that go with a unit, and gradients of the mean loss
BOTH: dict[str, Callable[[Entries], Tensor]] = {
    "magnitude": lambda own: sum(w.abs().sum() for w, _ in own),
    "l2_norm": lambda own: sum(w.square().sum() for w, _ in own).sqrt(),
    "taylor": lambda own: sum((w * g).abs().sum() for w, g in own),
    "squared_taylor": lambda own: sum((w * g).square().sum() for w, g in own),
    "r_score": lambda own: sum((w * g).sum() for w, g in own).abs(),
}


def kinds_for(name: str) -> tuple[str, ...]:
    return PARTS[:3] if name in OF_STREAMS else PARTS


def on_the_graph(model: nn.Module, name: str) -> dict[str, Tensor]:
    """Return the scores of planning."""
    removals = Removals(model, trace(model, as_inputs(inputs()["images"][:1])), kinds_for(name))
    variants = Variants(removals, OutputDivergence([as_inputs(batch[0]) for batch in rows("vit")]))
    return IMPORTANCES[name](GraphContext.of(variants, removals.units, (), **HOW))


@pytest.mark.parametrize("name", sorted({*OF_DEPTH} - {"random", *WITHOUT_UNITS}))
def test_a_unit_has_one_number_alone_and_in_planning(name: str) -> None:
    model = dense("vit")
    units, graph = find_units(model, kinds=kinds_for(name)), on_the_graph(dense("vit"), name)
    alone = IMPORTANCES[name](DepthContext(model=model, units=units, **HOW))
    assert len(alone) >= 9
    for unit, number in alone.items():
        assert number.item() == pytest.approx(graph[unit].item(), rel=1e-4, abs=1e-7), unit


@pytest.mark.parametrize("name", WITHOUT_UNITS)
def test_networks_without_units_are_made_by_planning(name: str) -> None:
    model = dense("vit")
    with pytest.raises(ValueError, match=r"Expected a context made by planning, .* Use plan_depth or sensitivity"):
        IMPORTANCES[name](DepthContext(model=model, units=find_units(model, kinds=("mlp",)), **HOW))


@pytest.mark.parametrize("name", BOTH)
def test_a_formula_of_weights_is_the_same_in_depth_and_in_width(name: str) -> None:
    model, batch = dense("residual"), rows("residual")[0]
    blocks, groups = find_units(model, batch[0], ("block",)), find_groups(model, batch[0]).groups
    in_depth = DepthContext(model=model, units=blocks, batches=[batch], loss=loss)
    in_width = WidthContext(model=model, groups=groups, batches=[batch], loss=loss)
    (of_blocks,), (of_channels,) = (compute_importances(context, [name]) for context in (in_depth, in_width))
    loss(model, batch).backward()
    whole = [(p.detach().double(), p.grad.double()) for p in model.blocks[1].parameters()]
    assert of_blocks["blocks.1"].item() == pytest.approx(BOTH[name](whole).item(), rel=1e-4)
    weights = dict(model.named_parameters())
    for group in groups:
        parts = [part for part in group.slices if part.makes and part.tensor in weights]
        for number, score in enumerate(of_channels[group.name].tolist()):
            own = []
            for part in parts:
                weight, index = weights[part.tensor], part.indices(torch.tensor([number]))
                own.append(tuple(t.detach().index_select(part.dim, index).double() for t in (weight, weight.grad)))
            assert score == pytest.approx(BOTH[name](own).item(), rel=1e-4, abs=1e-9)


def test_names_are_at_the_top() -> None:
    assert prunerecover.importances["taylor"] is IMPORTANCES["taylor"]
    prunerecover.register_importance("by_name", by_name)
    try:
        assert "by_name" in prunerecover.importances
        vit, cnn = dense("vit"), dense("residual")
        assert plan_depth(vit, remove={"mlp": 1}, replace="zero", importance="by_name", batches=rows("vit")).removed
        assert plan_width(cnn, Budget(macs=0.2), importance="by_name", batches=rows("residual")).removed
    finally:
        del IMPORTANCES["by_name"]


def by_name(context: DepthContext | WidthContext) -> dict[str, Tensor]:
    """Return constant scores for either context."""
    return {name: torch.full(shape, float(len(name))) for name, shape in context.shapes.items()}


@pytest.mark.parametrize(("name", "context"), [("u_score", "depth"), ("angular_distance", "width")])
def test_what_a_context_cannot_answer_says_so(name: str, context: str) -> None:
    scored = {
        "depth": DepthContext(model=dense("vit"), units=(), **HOW),
        "width": WidthContext(model=dense("vit"), groups=(), **HOW),
    }[context]
    with pytest.raises(ValueError, match=rf"Expected .* for importance='{name}', but got .* of {context}\. Use '"):
        IMPORTANCES[name].compute(scored)
    with pytest.raises(ValueError, match=rf"importances .*'{name}', which scores units of"):
        compute_importances(scored, [name])


def test_ends_of_branches_are_known_in_families_alone() -> None:
    model, batch = dense("residual"), rows("residual")[0]
    blocks, others = (find_units(model, batch[0], kinds) for kinds in (("block",), ("mlp",)))
    scores = compute_importances(DepthContext(model=model, units=blocks, **HOW), ["block_influence", "gate_gradient"])
    assert all(found.keys() == {unit.name for unit in blocks} for found in scores)
    for name in ("block_influence", "gate_gradient"):
        with pytest.raises(ValueError, match=rf"Expected whole blocks for importance='{name}' in ResidualCnn"):
            IMPORTANCES[name](DepthContext(model=model, units=others, **HOW))
