"""Importances against finite differences and independent formulas, with the model unchanged afterwards."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from cases.engine import PLANNED, UNGATED, UNLIKE, batch_of, batches_of, build, unchanged
from cases.models.decoders import DECODERS
from cases.models.tiny import GATED, tiny_inputs
from cases.sampling import one_in
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from prunerecover import apply_plan, find_units, plan_depth
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.families.describe import describe
from prunerecover.importance.context import DepthContext
from prunerecover.importance.data_free import random
from prunerecover.importance.first_order import taylor
from prunerecover.importance.gate_gradient import gate_gradient, gated
from prunerecover.importance.registry import IMPORTANCES
from prunerecover.importance.turned_stream import angular_distance, block_influence
from prunerecover.model.batches import as_inputs, call, predictions_of
from prunerecover.model.hooks import recording
from prunerecover.model.paths import get_module
from prunerecover.plan.units import Unit
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits


def loss(model: nn.Module, batch: Any) -> Tensor:
    """A smooth loss without labels: softmax cross-entropy with class 1."""
    output = predictions_of(call(model, as_inputs(batch)))
    return -output.log_softmax(-1)[..., 1].mean()


def of(importance: Any, model: nn.Module, units: Sequence[Unit], batches: Sequence[Any] = (), **context: Any) -> dict:
    """Return the scores of units by an importance."""
    found = importance(DepthContext(model=model, units=units, batches=batches, **context))
    return {name: float(value) for name, value in found.items()}


def in_planning(name: str, model: nn.Module, kinds: Sequence[str], batches: Sequence[Any], loss: Any = None) -> dict:
    """Return the scores of units by an importance of networks without units, which planning makes."""
    config = DepthConfig(importance=name, loss=loss, replace="zero")
    return DepthSearch(Session(model, batches, loss=loss), kinds, config).rank()


def units_of(model: nn.Module, name: str, *kinds: str) -> tuple[Unit, ...]:
    everything = ("block", "attention", "mlp", "activation") if name in UNGATED else ("block", "attention", "mlp")
    return find_units(model, kinds=kinds or everything)


@pytest.mark.parametrize(("name", "replace"), one_in(3, itertools.product(UNLIKE, ["calibrated", "identity"])))
def test_gate_gradient_equals_finite_difference(name: str, replace: str) -> None:
    """Closing a gate by a little changes the loss by the importance times as much: dL/dh (f(x) - x) in all."""
    model, batch = build(name).double(), batch_of(name)
    batch = tree_map(lambda value: value.double() if value.is_floating_point() else value, batch)
    units = units_of(model, name)
    scores = of(gate_gradient, model, units, [batch], loss=loss, replace=replace)
    # Exact in single precision, which Llama's norms use at any dtype; small because ReLU has kinks.
    step = 2**-9 if name in GATED else 2**-14
    with gated(model, units, replace) as gates, torch.no_grad():
        for unit, gate in zip(units, gates, strict=True):
            ends = []
            for value in (1 - step, 1 + step):
                gate.fill_(value)
                ends.append(loss(model, batch).item())
            gate.fill_(1)
            assert scores[unit.name] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-2, abs=1e-5)


@pytest.mark.parametrize(("kind", "leaves"), [("attention", "zero"), ("mlp", "identity"), ("activation", "identity")])
def test_closed_gate_equals_removed_unit(kind: str, leaves: str) -> None:
    model, pruned = build("timm_all"), build("timm_all")
    units = units_of(model, "timm_all", kind)
    batch = batch_of("timm_all")
    others = [u.name for u in units if ".1." not in u.name]
    plan = plan_depth(model, remove={kind: 1}, batches=batches_of("timm_all"), replace=leaves, ignore=others)
    apply_edits(pruned, plan.edits, plan.tensors)
    unit = next(u for u in units if ".1." in u.name)
    with gated(model, [unit], leaves) as (gate,), torch.no_grad():
        gate.fill_(0)
        assert loss(model, batch).item() == pytest.approx(loss(pruned, batch).item(), abs=1e-6)


def test_gate_gradient_averages_over_samples() -> None:
    model, batches = build("timm"), [batch_of("timm", 3, seed=1), batch_of("timm", 9, seed=2)]
    units = units_of(model, "timm")
    parts = [of(gate_gradient, model, units, [b], loss=loss) for b in batches]
    both = of(gate_gradient, model, units, batches, loss=loss)
    wanted = {u.name: (3 * parts[0][u.name] + 9 * parts[1][u.name]) / 12 for u in units}
    assert both == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("name", ["timm_all", "bert"])
def test_taylor_equals_autograd_on_the_whole_batch(name: str) -> None:
    model, oracle, batch = build(name), build(name), batch_of(name)
    units = units_of(model, name)
    scores = of(taylor, model, units, [batch], loss=loss)
    loss(oracle, batch).backward()
    layout = describe(oracle)
    for unit in units:
        forward = layout.feed_forward(unit.name)
        paths = (forward.first, forward.second) if unit.kind == "activation" and forward else unit.targets
        owned = {p for path in paths for p in get_module(oracle, path).parameters() if p.grad is not None}
        expected = sum((p.detach().double() * p.grad).abs().sum().item() for p in owned)
        assert scores[unit.name] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", UNLIKE)
def test_residual_distances_equal_hidden_states_of_hooks(name: str) -> None:
    model, batch = build(name), batch_of(name)
    units = units_of(model, name, "block")
    states: list[Tensor] = []

    def keep(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        states.extend(
            (args[0] if args else kwargs["hidden_states"], output[0] if isinstance(output, tuple) else output)
        )

    handles = [get_module(model, u.name).register_forward_hook(keep, with_kwargs=True) for u in units]
    with torch.no_grad():
        call(model, as_inputs(batch))
    for handle in handles:
        handle.remove()
    influence = of(block_influence, model, units, [batch])
    angle = of(angular_distance, model, units, [batch])
    for i, unit in enumerate(units):
        a, b = states[2 * i].double(), states[2 * i + 1].double()
        cosine = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))
        assert influence[unit.name] == pytest.approx(1 - cosine.mean().item(), abs=1e-6)
        assert angle[unit.name] == pytest.approx(cosine.arccos().mean().item() / math.pi, abs=1e-6)


@pytest.mark.parametrize("name", PLANNED)
def test_branch_that_adds_nothing_has_no_influence(name: str) -> None:
    model = build(name)
    branch = describe(model).blocks[1].attention
    assert branch is not None
    units = units_of(model, name, "attention", "mlp")
    assert all(v > 1e-4 for v in of(block_influence, model, units, batches_of(name)).values())
    get_module(model, branch.last).register_forward_hook(
        lambda _, __, out: (out[0] * 0, *out[1:]) if isinstance(out, tuple) else out * 0
    )
    silent = of(block_influence, model, units, batches_of(name))
    assert [unit for unit, value in silent.items() if value == pytest.approx(0, abs=1e-9)] == [branch.path]


@pytest.mark.parametrize(
    ("name", "norm", "attention", "factor"),
    [
        ("granite", "input_layernorm", "self_attn", 0.3),
        ("phi", "input_layernorm", "self_attn", 1.0),
        ("olmo2", "self_attn", "post_attention_layernorm", 1.0),
    ],
)
@torch.no_grad()
def test_stream_before_and_after_an_attention(name: str, norm: str, attention: str, factor: float) -> None:
    model, inputs = DECODERS[name].build(), tiny_inputs("text")
    layer = model.get_submodule("model.layers.1")
    with recording({"first": layer.get_submodule(norm), "last": layer.get_submodule(attention)}) as seen:
        model(**inputs)
    before = seen["first.in"]
    cosine = torch.cosine_similarity(before, before + factor * seen["last.out"], dim=-1)
    units = find_units(model, kinds=("attention",))
    found = block_influence(DepthContext(model=model, units=units, batches=(inputs,)))
    assert found["model.layers.1.self_attn"] == pytest.approx(float(1 - cosine.mean()), abs=1e-5)


def test_padding_does_not_count() -> None:
    model, inputs = build("llama"), batch_of("llama", 8)
    padded = {
        "input_ids": torch.cat([inputs["input_ids"], torch.randint(3, 61, (8, 4))], 1),
        "attention_mask": torch.cat([torch.ones(8, 9), torch.zeros(8, 4)], 1).long(),
    }
    units = units_of(model, "llama", "block", "attention")
    assert of(block_influence, model, units, [padded]) == pytest.approx(
        of(block_influence, model, units, [inputs]), rel=1e-4
    )


def test_distances_refuse_activations() -> None:
    model = build("timm")
    for importance in (angular_distance, block_influence):
        name = importance.__name__
        with pytest.raises(ValueError, match=rf"act on the residual stream .* for importance='{name}'"):
            of(importance, model, units_of(model, "timm", "activation"), batches_of("timm"))


def test_random_depends_on_the_seed_alone() -> None:
    model = build("timm")
    units = units_of(model, "timm")
    first, second = (of(random, model, units, seed=3) for _ in range(2))
    assert first == second
    assert first != of(random, model, units, seed=4)
    assert all(0 <= value < 1 for value in of(random, model, units).values())


WITHOUT_UNITS = ("output_divergence", "cross_entropy", "block_output_angle")
NEEDS = {name: {"loss": loss} for name, entry in IMPORTANCES.items() if entry.needs_loss}
OF_DEPTH = sorted(name for name, entry in IMPORTANCES.items() if entry.of != "width")


@pytest.mark.parametrize(("name", "training"), zip(OF_DEPTH, itertools.cycle([False, True])))
def test_plain_function_leaves_the_model_bit_identical(name: str, training: bool) -> None:
    model = build("timm_all").train(training)
    model.blocks[2].eval()
    model.blocks[1].requires_grad_(False)
    model.head.bias.grad = torch.ones(5)
    units = units_of(model, "timm_all", "block", "attention", "mlp")
    with unchanged(model):
        how = (batches_of("timm_all"),)
        if name in WITHOUT_UNITS:
            scores = in_planning(name, model, ("block", "attention", "mlp"), *how, **NEEDS.get(name, {}))
        else:
            scores = of(IMPORTANCES[name], model, units, *how, **NEEDS.get(name, {}))
    assert scores.keys() == {u.name for u in units}
    assert all(isinstance(v, float) and math.isfinite(v) for v in scores.values())


@pytest.mark.parametrize("name", sorted(NEEDS.keys() & set(OF_DEPTH)))
def test_model_is_bit_identical_also_after_an_exception(name: str) -> None:
    model = build("timm_all").train()

    def failing(model: nn.Module, batch: Any) -> Tensor:
        loss(model, batch)
        raise KeyError("of the user")

    def scored() -> None:
        if name in WITHOUT_UNITS:
            in_planning(name, model, ("attention", "mlp"), batches_of("timm_all"), failing)
        of(IMPORTANCES[name], model, units_of(model, "timm_all"), batches_of("timm_all"), loss=failing)

    with unchanged(model), pytest.raises(KeyError, match="of the user"):
        scored()


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (lambda m, b: 1.0, TypeError, r"loss\(model, batch\) to return a scalar tensor, but got float"),
        (
            lambda m, b: loss(m, b).detach(),
            ValueError,
            "requires_grad=False. Average over the batch, and do not detach",
        ),
        (lambda m, b: predictions_of(call(m, as_inputs(b))), ValueError, r"but got shape \(8, 5\)"),
    ],
)
def test_bad_loss_is_explained(bad: Any, error: type[Exception], message: str) -> None:
    model = build("timm")
    with pytest.raises(error, match=message):
        of(gate_gradient, model, units_of(model, "timm"), batches_of("timm"), loss=bad)


def test_loss_that_does_not_run_the_model_is_explained() -> None:
    model, other = build("timm"), build("timm")
    for importance in (taylor, gate_gradient):
        with pytest.raises(ValueError, match="no gradient reached any"):
            of(importance, model, units_of(model, "timm"), batches_of("timm"), loss=lambda _, batch: loss(other, batch))


def loss_of_class_zero(model: nn.Module, batch: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(batch), torch.zeros(len(batch), dtype=torch.long))


@pytest.mark.slow
def test_a_score_is_the_loss_of_the_network_without_the_unit() -> None:
    batches = batches_of("timm")
    units = find_units(build("timm"), kinds=("block", "attention"))
    scores = in_planning("cross_entropy", build("timm"), ("block", "attention"), batches, loss_of_class_zero)
    for unit in units:
        model = build("timm").eval()
        others = [other.name for other in units if other.kind == unit.kind and other is not unit]
        apply_plan(model, plan_depth(model, remove={unit.kind: 1}, batches=batches, replace="zero", ignore=others))
        samples = sum(map(len, batches))
        wanted = sum(float(loss_of_class_zero(model, batch)) * len(batch) for batch in batches) / samples
        assert scores[unit.name] == pytest.approx(wanted, rel=1e-5)


def test_it_needs_a_loss_and_ranks_layers() -> None:
    how = {"remove": {"layer": 2}, "batches": batches_of("timm"), "importance": "cross_entropy", "search": "rounds"}
    with pytest.raises(ValueError, match=r"argument loss=f\(model, batch\) for importance='cross_entropy'"):
        plan_depth(build("timm"), **how)
    assert len(plan_depth(build("timm"), **how, loss=loss_of_class_zero).removed["layer"]) == 2
