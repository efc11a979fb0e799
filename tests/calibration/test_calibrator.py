"""The choice of replacements equals a brute-force evaluation with full forward passes."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from cases.engine import PLANNED, UNGATED, batch_of, batches_of, build, output_of, unchanged
from cases.models.tiny import tiny_timm
from cases.sampling import one_in
from torch import Tensor, nn

from prunerecover.apply import apply_plan
from prunerecover.calibration.calibrator import Calibrator
from prunerecover.calibration.candidates import Form
from prunerecover.depth.family.edits import edits_of
from prunerecover.divergence.registry import output_divergence
from prunerecover.model.batches import split_batches
from prunerecover.model.evaluation import evaluating
from prunerecover.plan.edits import Fold, Remove
from prunerecover.plan.units import Unit
from prunerecover.planning.plan_depth import plan_depth
from prunerecover.sites.find import find_units
from prunerecover.surgery.apply_edits import apply_edits

CPU = torch.device("cpu")


def calibrator_of(
    model: nn.Module, batches: Sequence[Any], kinds: Sequence[str], replace: str = "calibrated"
) -> Calibrator:
    with evaluating(model):
        return Calibrator(model, split_batches(batches, CPU), find_units(model, kinds=kinds), replace)


def brute_force(model: nn.Module, edits: list[Any], values: dict[str, Tensor], held_out: Sequence[Any]) -> float:
    """Divergence of a pruned copy, run from beginning to end, over the held-out samples."""
    pruned = copy.deepcopy(model)
    apply_edits(pruned, edits, values)
    n = sum(b.n_samples for b in held_out)
    return sum(float(output_divergence(output_of(model, b), output_of(pruned, b))) * b.n_samples for b in held_out) / n


@pytest.mark.parametrize("name", PLANNED)
def test_score_of_every_unit_equals_brute_force(name: str) -> None:
    model, batches = build(name), batches_of(name)
    kinds = ("attention", "mlp", "activation") if name in UNGATED else ("attention", "mlp")
    calibrator = calibrator_of(model, batches, kinds)
    with evaluating(model), unchanged(model):
        scores = calibrator.score(find_units(model, kinds=kinds))
    for choice in scores.values():
        edits, values = edits_of(model, [(choice.unit, choice.candidate)])
        found = brute_force(model, edits, values, calibrator.samples.held_out)
        assert choice.divergence == pytest.approx(found, rel=2e-3, abs=1e-6)


@pytest.mark.parametrize("name", one_in(3, ["timm_all", "gpt2", "bert", "llama"]))
def test_chosen_candidate_is_the_best_of_all_by_full_forward_passes(name: str) -> None:
    model, batches = build(name), batches_of(name)
    kinds = ("attention", "activation") if name in UNGATED else ("attention", "mlp")
    calibrator = calibrator_of(model, batches, kinds)
    options: dict[str, list[Any]] = {}
    inner = calibrator._candidates

    def noting(index: int, unit: Unit, *rest: Any) -> list[Any]:
        options[unit.name] = inner(index, unit, *rest)
        return options[unit.name]

    calibrator._candidates = noting  # type: ignore[method-assign]
    with evaluating(model):
        scores = calibrator.score(find_units(model, kinds=kinds))
    assert {len(found) for found in options.values()} <= {3, 4}
    for name_, choice in scores.items():
        costs = []
        for candidate in options[name_]:
            edits, values = edits_of(model, [(choice.unit, candidate)])
            costs.append(brute_force(model, edits, values, calibrator.samples.held_out))
        assert costs[[c is choice.candidate for c in options[name_]].index(True)] == pytest.approx(
            min(costs), rel=1e-3, abs=1e-7
        )


@pytest.mark.parametrize("name", PLANNED)
def test_units_replaced_in_order_equal_the_plan_applied(name: str) -> None:
    """The last divergence from `choose` is the pruned model's.

    Maps for blocks are fitted to all samples afterwards; see test_run_maps.py.
    """
    model, batches = build(name), batches_of(name)
    kinds = {"attention": 2, "block": 1, ("activation" if name in UNGATED else "mlp"): 2}
    plan = plan_depth(model, remove=kinds, batches=batches)
    if any(isinstance(edit, Fold) for edit in plan.edits):
        plan = plan_depth(model, remove={kind: n for kind, n in kinds.items() if kind != "block"}, batches=batches)
    pruned = copy.deepcopy(model)
    apply_plan(pruned, plan)
    held_out = split_batches(batches, CPU).held_out
    n = sum(b.n_samples for b in held_out)
    found = sum(float(output_divergence(output_of(model, b), output_of(pruned, b))) * b.n_samples for b in held_out) / n
    assert list(plan.evidence["divergence"].values())[-1] == pytest.approx(found, rel=2e-3, abs=1e-6)


@pytest.mark.parametrize("name", ["timm_all", "bert", "opt_post_norm", "gpt2"])
def test_fit_aims_at_the_dense_state_after_what_was_pruned_before(name: str) -> None:
    """A feed-forward fitted after the removal of the attention brings the block's output nearer to the dense output."""
    model, batches = build(name), batches_of(name, count=8, n=8)
    units = [u for u in find_units(model, kinds=("attention", "activation")) if ".1." in u.name]
    forms = {u.name: Form("zero" if u.kind == "attention" else "affine") for u in units}
    calibrator = calibrator_of(model, batches, ("attention", "activation"))
    with evaluating(model):
        in_order = {c.unit.kind: c.candidate for c in calibrator.choose(units, forms)}
        on_dense = calibrator.choose([u for u in units if u.kind == "activation"], forms)[0].candidate

    def error(*candidates: Any) -> float:
        with ExitStack() as stack, torch.no_grad():
            dense = [calibrator.runner.advance(b, 0, None, 2) for b in calibrator.samples.fit]
            for candidate in candidates:
                stack.enter_context(calibrator._in_place(candidate))
            pruned = [calibrator.runner.advance(b, 0, None, 2) for b in calibrator.samples.fit]
        return float((torch.cat(pruned) - torch.cat(dense)).square().mean())

    attention = in_order["attention"]
    assert error(attention, in_order["activation"]) < 0.9 * error(attention, on_dense)


def test_calibrated_is_at_least_as_good_as_zero_for_every_unit() -> None:
    model, batches = build("timm_all"), batches_of("timm_all")
    kinds = ("attention", "mlp")
    fitted, zero = (calibrator_of(model, batches, kinds, replace) for replace in ("calibrated", "zero"))
    with evaluating(model):
        best, bare = fitted.score(find_units(model, kinds=kinds)), zero.score(find_units(model, kinds=kinds))
    assert all(best[name].divergence <= bare[name].divergence for name in bare)


def test_linear_feed_forward_loses_nothing() -> None:
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


def test_greedy_equals_exhaustive_search_step_by_step() -> None:
    model, batches = build("timm"), batches_of("timm")
    plan = plan_depth(model, remove={"attention": 3}, batches=batches, replace="zero", search="greedy")
    held_out = split_batches(batches, CPU).held_out
    units = [u.name for u in find_units(model, kinds=("attention",))]

    def cost(names: Sequence[str]) -> float:
        return brute_force(model, [Remove(unit=n, kind="attention") for n in names], {}, held_out)

    gone: list[str] = []
    for _ in range(3):
        gone.append(min((u for u in units if u not in gone), key=lambda u: cost([*gone, u])))
    assert set(plan.removed["attention"]) == set(gone)
    exhaustive = min(cost(some) for some in itertools.combinations(units, 3))
    assert cost(gone) >= exhaustive
    assert list(plan.evidence["divergence"].values())[-1] == pytest.approx(cost(gone), rel=1e-3)


def test_greedy_needs_room() -> None:
    with pytest.raises(ValueError, match="Expected enough units outside the other removed ones"):
        plan_depth(
            build("timm"),
            remove={"attention": 4, "block": 2},
            batches=batches_of("timm"),
            replace="zero",
            search="greedy",
        )


def test_fewer_than_8_samples_warn_and_leave_zero() -> None:
    model = build("timm")
    with pytest.warns(UserWarning, match=r"Only 7 calibration samples \(fewer than 8\): removed units leave zero"):
        plan = plan_depth(model, remove={"attention": 1, "activation": 1}, batches=[batch_of("timm", 7)])
    attention, activation = sorted(plan.edits, key=lambda e: e.kind, reverse=True)
    assert (attention.kind, attention.leaves) == ("attention", "zero")
    assert activation.leaves == "slope_bias"
    assert not any(t.any() for t in plan.tensors.values())


def test_padding_does_not_enter_the_divergence() -> None:
    model = build("llama")
    inputs = batch_of("llama", 16)
    padded = {
        "input_ids": torch.cat([inputs["input_ids"], torch.randint(3, 61, (16, 4))], 1),
        "attention_mask": torch.cat([torch.ones(16, 9), torch.zeros(16, 4)], 1).long(),
    }
    scores = []
    for batch in (inputs, padded):
        calibrator = calibrator_of(model, [batch], ("block",))
        with evaluating(model):
            scores.append([c.divergence for c in calibrator.score(find_units(model, kinds=("block",))).values()])
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)


@pytest.mark.parametrize("new", [0, 2, 5])
def test_known_choices_spare_fits_and_change_nothing(new: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batches = build("timm_all"), batches_of("timm_all")
    kinds = ("attention", "activation")
    calibrator, units = calibrator_of(model, batches, kinds), find_units(model, kinds=kinds)[:6]
    with evaluating(model):
        anew = calibrator.choose(units)
        known = calibrator.choose([u for u in units if u is not units[new]])
        fitted: list[str] = []
        fit = calibrator._fitted
        monkeypatch.setattr(
            calibrator, "_fitted", lambda *args: fitted.extend(unit.name for unit in args[1]) or fit(*args)
        )
        found = calibrator.choose(units, known=known)
    assert fitted == [choice.unit.name for choice in anew[new:]]
    for one, other in zip(anew, found, strict=True):
        assert (one.unit, one.divergence) == (other.unit, other.divergence)
        assert one.candidate.leaves == other.candidate.leaves
        assert all(torch.equal(value, other.candidate.values[name]) for name, value in one.candidate.values.items())
