"""Replacements of units of supported families, against closed forms, brute force and exhaustive search."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.engine import PLANNED, UNGATED, batch_of, batches_of, build, output_of
from cases.models.decoders import DECODERS
from cases.models.tiny import tiny_timm
from torch import Tensor, nn

from prunerecover import Budget, Plan, apply_plan, plan_depth
from prunerecover.calibration.places import family_places
from prunerecover.calibration.samples import split_batches
from prunerecover.calibration.stand_in_fits import fits_alone, refit_in_order
from prunerecover.cost.macs import count_macs
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.divergence.registry import output_divergence
from prunerecover.families.describe import describe
from prunerecover.model.batches import as_inputs
from prunerecover.model.hooks import recording
from prunerecover.plan.edits import Remove, Replace
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits


def divergence_of(model: nn.Module, pruned: nn.Module, name: str) -> float:
    """Return the divergence on held-out samples, with both networks run from beginning to end."""
    held_out = split_batches(batches_of(name), torch.device("cpu")).held_out
    n = sum(b.n_samples for b in held_out)
    return sum(float(output_divergence(output_of(model, b), output_of(pruned, b))) * b.n_samples for b in held_out) / n


@pytest.mark.parametrize("name", PLANNED)
def test_the_plan_tells_what_is_left_of_the_network_and_how_far_it_diverges(name: str) -> None:
    model = build(name)
    kinds = {"attention": 2, "block": 1, ("activation" if name in UNGATED else "mlp"): 2}
    plan = plan_depth(model, remove=kinds, batches=batches_of(name), search="greedy")
    assert {kind: len(names) for kind, names in plan.removed.items()} == kinds
    pruned = copy.deepcopy(model)
    apply_plan(pruned, plan)
    assert list(plan.evidence["divergence"].values()) == pytest.approx([divergence_of(model, pruned, name)], rel=2e-3)
    assert len(plan.evidence["importance"]) == 12
    assert plan.result.params == sum(p.numel() for p in pruned.parameters())
    assert plan.result.macs == count_macs(pruned, as_inputs(batch_of(name)).select(torch.tensor([0])))


@pytest.mark.parametrize("name", ["llama", "timm_all", "gpt2"])
def test_constants_and_maps_are_least_squares_of_the_branch(name: str) -> None:
    model, inputs = build(name).eval(), as_inputs(batch_of(name, 64))
    branch = describe(model).blocks[1].attention
    assert branch is not None
    (place,) = family_places(model, branch.path)
    found = {(fit.leaves, fit.ridge): fit.values for fit in fits_alone(model, [place], [inputs])[branch.path]}
    modules = {path: model.get_submodule(path) for path in {branch.path, branch.last}}
    with recording(modules) as seen, torch.no_grad():
        output_of(model, inputs)
    x, y = (seen[key].flatten(0, -2).double() for key in (f"{branch.path}.in", f"{branch.last}.out"))
    torch.testing.assert_close(found["constant", float("inf")]["bias"].double(), y.mean(0), rtol=1e-4, atol=1e-6)
    centred, ridge = x - x.mean(0), 0.01
    among = centred.T @ centred / len(x)
    penalty = ridge * among.diagonal().mean() * torch.eye(len(among), dtype=torch.double)
    weight = torch.linalg.solve(among + penalty, centred.T @ y / len(x)).T
    torch.testing.assert_close(found["affine", ridge]["weight"].double(), weight, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("name", "most"), [("opt_post_norm", 0.95), ("gpt2", 0.95), ("bert", 0.95), ("granite", 1.0)])
def test_a_fit_aims_at_the_dense_stream_behind_earlier_removals(name: str, most: float) -> None:
    model = (DECODERS[name].build() if name in DECODERS else build(name)).eval()
    batches = [as_inputs(batch) for batch in batches_of(name, count=4)]
    block = describe(model).blocks[1]
    assert block.attention is not None
    assert block.mlp is not None
    gone = Remove(unit=block.attention.path, kind="attention")
    keys = tuple(f"{block.mlp.path}.{key}" for key in ("weight", "bias"))
    edits = [gone, Replace(unit=block.mlp.path, kind="mlp", leaves="affine", tensors=keys)]
    together = refit_in_order(model, edits, batches)[block.mlp.path].tensors
    alone = refit_in_order(model, edits[1:], batches)[block.mlp.path].tensors

    def error(tensors: dict[str, Tensor]) -> float:
        pruned, total = copy.deepcopy(model), 0.0
        apply_edits(pruned, edits, tensors)
        for batch in batches:
            outs = []
            for network in (model, pruned):
                with recording({"block": network.get_submodule(block.path)}) as seen:
                    output_of(network, batch)
                outs.append(seen["block.out"])
            total += float((outs[0] - outs[1]).square().mean())
        return total

    assert error(together) < most * error(alone)


@pytest.mark.parametrize(("kind", "replace"), [("attention", "zero"), ("activation", "identity"), ("mlp", "zero")])
def test_fitted_replacements_are_no_worse_than_plain_ones(kind: str, replace: str) -> None:
    session = Session(build("timm_all"), batches_of("timm_all"))
    planners = (DepthSearch(session, (kind,), DepthConfig(replace=how)) for how in ("calibrated", replace))
    fitted, plain = ({unit.name: own.variants.held_out([unit]) for unit in own.units} for own in planners)
    assert fitted.keys() == plain.keys()
    assert all(fitted[name] <= plain[name] for name in plain)
    assert any(fitted[name] < plain[name] for name in plain)


def test_linear_feed_forwards_lose_nothing() -> None:
    """If the activation is already linear per channel, slope and bias reproduce it."""

    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 0.5 * x + 0.25

    model = tiny_timm(act_layer=Half)
    plan = plan_depth(model, remove={"activation": 4}, batches=batches_of("timm"))
    dense = output_of(model, batch_of("timm", seed=99))
    apply_plan(model, plan)
    assert torch.allclose(output_of(model, batch_of("timm", seed=99)), dense, atol=1e-3)
    assert max(plan.evidence["divergence"].values()) < 1e-6


def test_fewer_than_8_samples_warn_and_leave_zero() -> None:
    with pytest.warns(UserWarning, match=r"Only 7 calibration samples \(fewer than 8\): removed units leave zero"):
        plan = plan_depth(build("timm"), remove={"attention": 1, "activation": 1}, batches=[batch_of("timm", 7)])
    leaves = {edit.kind: edit.leaves for edit in plan.edits if isinstance(edit, Remove | Replace)}
    assert leaves == {"attention": "zero", "activation": "identity"}
    assert not plan.tensors


def test_zero_activations_leave_the_output_bias_alone() -> None:
    plan = plan_depth(build("timm"), remove={"activation": 1}, batches=batches_of("timm"), replace="zero")
    (edit,) = plan.edits
    assert isinstance(edit, Replace)
    assert edit.leaves == "slope_bias"
    assert not any(value.any() for value in plan.tensors.values())


def test_padding_does_not_enter_the_divergence() -> None:
    inputs = batch_of("llama", 16)
    padded = {
        "input_ids": torch.cat([inputs["input_ids"], torch.randint(3, 61, (16, 4))], 1),
        "attention_mask": torch.cat([torch.ones(16, 9), torch.zeros(16, 4)], 1).long(),
    }
    config = DepthConfig(replace="zero")
    first, second = (DepthSearch(Session(build("llama"), [b]), ("block",), config).rank() for b in (inputs, padded))
    assert first == pytest.approx(second, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "activation"])
def test_what_is_left_together_is_tuned_on_the_output(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(batches: list[Tensor]) -> Plan:
        config = DepthConfig(search="greedy")
        return DepthSearch(Session(build("timm"), batches), (kind,), config).plan(Budget(remove={kind: 2}))

    batches = batches_of("timm", n=128)
    tuned = plan(batches)
    monkeypatch.setattr("prunerecover.library.tuning.is_differentiable", lambda model: False)
    solved = plan(batches)
    assert tuned.removed == solved.removed
    assert [*tuned.evidence["divergence"].values()] < [*solved.evidence["divergence"].values()]
