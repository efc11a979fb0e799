"""Maps in the place of runs of blocks: never worse than zero on held-out samples, and only where possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from cases.engine import batch_of, batches_of, build, divergence_without, plan_of
from cases.models.decoders import DECODERS
from torch import Tensor

from prunerecover import Plan, apply_plan, plan_depth
from prunerecover.calibration import run_maps
from prunerecover.calibration.calibrator import Calibrator
from prunerecover.calibration.candidates import Form
from prunerecover.calibration.run_maps import RunFit
from prunerecover.depth.family.runs import runs_for
from prunerecover.depth.search.goals import Counted
from prunerecover.families.describe import describe
from prunerecover.model.batches import split_batches
from prunerecover.model.evaluation import evaluating
from prunerecover.plan.edits import Fold
from prunerecover.plan.removed_units import removed_units
from prunerecover.plan.units import Unit
from prunerecover.sites.find import find_units

FOLDED = ("llama", "gpt2", "timm")


def chosen(name: str, blocks: tuple[int, ...], replace: str = "calibrated", **known: Any) -> list[Any]:
    model = build(name)
    units = [unit for i, unit in enumerate(find_units(model, kinds=["block"])) if i in blocks]
    with evaluating(model):
        samples = split_batches(batches_of(name, n=16), torch.device("cpu"))
        return Calibrator(model, samples, units, replace).choose(units, **known)


def folds(plan: Plan) -> list[Fold]:
    return [edit for edit in plan.edits if isinstance(edit, Fold)]


@pytest.mark.parametrize("name", FOLDED)
def test_a_map_is_never_worse_than_nothing(name: str) -> None:
    nothing, best = (chosen(name, (2, 3), replace)[-1] for replace in ("zero", "calibrated"))
    assert best.divergence <= nothing.divergence
    if best.candidate.fold is None:
        assert best.divergence == nothing.divergence


@pytest.mark.parametrize("name", FOLDED)
def test_the_divergence_is_that_of_what_was_chosen(name: str) -> None:
    found = chosen(name, (2, 3))
    divergence = divergence_without(name, [(choice.unit, choice.candidate) for choice in found], n=16)
    assert divergence == pytest.approx(found[-1].divergence, rel=1e-2)


def test_maps_of_a_plan_are_fitted_to_the_samples_that_judged_them_as_well() -> None:
    def weight(ids: Tensor) -> Tensor:
        plan = plan_depth(build("gpt2"), remove={"block": 1}, batches=[{"input_ids": ids}])
        return plan.tensors["e0.weight"]

    ids = batch_of("gpt2", 16)["input_ids"]
    other = ids.clone()
    other[3] = ids[3].flip(0)  # every fourth is held out
    assert not torch.equal(weight(ids), weight(other))


@pytest.mark.parametrize(("constant", "name"), [(False, "llama"), (True, "timm")])
def test_a_linear_run_is_found(constant: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_maps, "RIDGE", 1e-9)
    model = build(name)
    block = describe(model).blocks[1]
    fit, mlp = RunFit(model, block), block.mlp
    assert mlp is not None
    generator = torch.Generator().manual_seed(0)
    before, out, wanted = (torch.randn(4, 50, 32, generator=generator) for _ in range(3))
    true, shift = wanted[0, :32], wanted[1, 0] if constant else torch.zeros(32)
    seen = {f"{path}.out": out for path in fit.paths} | {f"{path}.in": before for path in mlp.before}
    fit.find_place(seen, before + out)
    fit.add(seen, before + out @ true.T + shift, torch.ones(4, 50))
    (candidate,) = fit.candidates(Unit("last", "block", (), 0))
    torch.testing.assert_close(candidate.values["weight"].float(), true, rtol=1e-3, atol=1e-3)
    assert ("bias" in candidate.values) == constant
    if constant:
        torch.testing.assert_close(candidate.values["bias"].float(), shift, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bert", "the stream is normalised behind 'bert.encoder.layer.1.output.dropout'"),
        ("opt_post_norm", "the stream is normalised behind 'model.decoder.layers.1.fc2'"),
        ("timm_all", "what 'blocks.1.drop_path2' adds to the stream is not the output of a plain linear"),
    ],
)
def test_what_is_normalised_or_scaled_on_the_way_takes_no_map(name: str, reason: str) -> None:
    model = build(name)
    units = find_units(model, kinds=["block"])[2:3]
    with evaluating(model):
        samples = split_batches(batches_of(name), torch.device("cpu"))
        calibrator = Calibrator(model, samples, units, "calibrated")
        (found,) = calibrator.choose(units)
        assert found.candidate.leaves == "zero"
        with pytest.raises(ValueError, match=f"Expected a linear before '{units[0].name}' that a map .*, but {reason}"):
            calibrator.choose(units, {units[0].name: Form("map")})


@pytest.mark.parametrize("name", ["gemma2", "olmo2"])
def test_norms_behind_the_branch_take_no_map(name: str) -> None:
    model = DECODERS[name].build()
    plan = plan_depth(model, remove={"block": 1}, batches=[batch_of("llama", 8)])
    assert not folds(plan)


def test_too_few_samples_leave_nothing() -> None:
    with pytest.warns(UserWarning, match="fewer than 8"):
        plan = plan_depth(build("llama"), remove={"block": 2}, batches=[batch_of("llama", 4)])
    assert not folds(plan)


def test_the_last_block_of_a_run_is_said_to_leave_a_map() -> None:
    plan = plan_of("gpt2", build("gpt2"), remove={"block": 2})
    left = {unit.name: unit.leaves for unit in removed_units(plan.edits)}
    assert folds(plan)
    assert {name for name, what in left.items() if what == "map"} == {fold.unit for fold in folds(plan)}


def test_each_run_has_a_map_of_its_own() -> None:
    found = chosen("gpt2", (1, 3))
    paths = [choice.candidate.fold.into for choice in found]
    assert paths == ["transformer.h.0.mlp.c_proj", "transformer.h.2.mlp.c_proj"]


def test_without_an_mlp_the_attention_takes_the_map() -> None:
    model = build("llama")
    units = find_units(model, kinds=["block", "mlp"])
    removed = [unit for unit in units if unit.name in ("model.layers.1.mlp", "model.layers.2")]
    with evaluating(model):
        samples = split_batches(batches_of("llama", n=16), torch.device("cpu"))
        forms = {"model.layers.1.mlp": Form("zero"), "model.layers.2": Form("map")}
        found = Calibrator(model, samples, units, "calibrated").choose(removed, forms)
    assert found[-1].candidate.fold.into == "model.layers.1.self_attn.o_proj"


@pytest.mark.parametrize("new", [1, 3])
def test_known_runs_are_fitted_again_only_where_they_change(new: int) -> None:
    anew = chosen("gpt2", (1, 2, 3))
    known = chosen("gpt2", tuple({1, 2, 3} - {new}))
    again = chosen("gpt2", (1, 2, 3), known=known)
    assert [choice.divergence for choice in again] == [choice.divergence for choice in anew]


def test_a_plan_without_its_maps_is_refused() -> None:
    plan = plan_of("llama", build("llama"), remove={"block": 2}).with_tensors({})
    with pytest.raises(ValueError, match=r"Expected the plan's fitted tensors \(e0.weight, ...\), but"):
        apply_plan(build("llama"), plan)


def test_fewer_of_its_blocks_go_without_maps() -> None:
    plan = plan_of("gpt2", build("gpt2"), remove={"block": 2})
    assert folds(plan)
    fewer = plan.first(1)
    assert not folds(fewer)
    assert not fewer.tensors
    model = build("gpt2")
    apply_plan(model, fewer)


@pytest.mark.parametrize("name", ["gpt2", "timm"])
def test_a_contiguous_run_is_taken_where_its_map_serves_better(name: str) -> None:
    plan = plan_of(name, build(name), remove={"block": 2})
    found = list(plan.evidence["divergence"].values())[-1]
    model = build(name)
    with evaluating(model):
        samples = split_batches(batches_of(name), torch.device("cpu"))
        units = find_units(model, kinds=["block"])
        calibrator = Calibrator(model, samples, units, "calibrated")
        runs = runs_of_two(calibrator, units)
        assert {describe(model).block_of(run[0].name) for run in runs} == {1, 2}
        assert all(found <= calibrator.choose(run)[-1].divergence for run in runs)


def runs_of_two(calibrator: Calibrator, blocks: Sequence[Unit]) -> list[tuple[Unit, ...]]:
    """The nearest runs, in order of depth."""
    in_order = {unit.name: float(number) for number, unit in enumerate(blocks)}
    return runs_for(Counted(blocks, {"block": 2}), calibrator, in_order)
