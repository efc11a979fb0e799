"""Replacements are tuned on the network's output, as far as held-out samples improve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest
import torch
from cases.engine import build, divergence_without, output_of, samples_of
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from prunerecover.calibration import tuning
from prunerecover.calibration.calibrator import Calibrator
from prunerecover.calibration.candidates import Choice, Form
from prunerecover.calibration.held_out import HeldOut
from prunerecover.model.batches import CalibrationSet
from prunerecover.model.evaluation import evaluating
from prunerecover.sites.find import find_units

FOLDED = ("llama", "gpt2", "timm")
BLOCKS = (2, 3)


def mapped(name: str, model: nn.Module, tune: bool = True, samples: CalibrationSet | None = None) -> list[Choice]:
    """Blocks 2 and 3 with a map, fitted to all samples, tuned or not."""
    units = [unit for i, unit in enumerate(find_units(model, kinds=["block"])) if i in BLOCKS]
    forms = {units[0].name: Form("zero"), units[1].name: Form("map")}
    with evaluating(model), pytest.MonkeyPatch.context() as patch:
        if not tune:
            patch.setattr(tuning, "is_differentiable", lambda model: False)
        own = Calibrator(model, samples or samples_of(name), units, "calibrated")
        return own.finished(own.choose(units, forms))


def divergence(name: str, choices: Sequence[Choice]) -> float:
    """Return the divergence of the network with the choices on held-out samples."""
    return divergence_without(name, [(choice.unit, choice.candidate) for choice in choices])


def values(choices: Sequence[Choice]) -> dict[str, Tensor]:
    return choices[-1].candidate.values


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDED)
def test_the_output_changes_less(name: str) -> None:
    assert divergence(name, mapped(name, build(name))) < divergence(name, mapped(name, build(name), tune=False))


def test_a_step_is_adams_on_the_output_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam's first step is the rate times the sign of the gradient, here of the folded weights."""
    monkeypatch.setattr(tuning, "EPOCHS", 1)
    better = count(0, -1)
    monkeypatch.setattr(HeldOut, "divergence", lambda *_: float(next(better)))
    model, whole = build("llama"), samples_of("llama", 16)
    batch, path = whole.fit[0].select(torch.arange(tuning.SAMPLES)), "model.layers.1.mlp.down_proj.weight"
    samples = replace(whole, fit=(batch,))
    before, after = (values(mapped("llama", model, tune, samples))["weight"] for tune in (False, True))
    dense, weight = output_of(model, batch).log_softmax(-1), model.get_parameter(path).detach()
    del model.model.layers[2:4]
    learnt = before.float().requires_grad_()
    output = functional_call(model, {path: learnt @ weight}, (), {**batch.kwargs, "use_cache": False})
    F.kl_div(output.logits.log_softmax(-1), dense, reduction="sum", log_target=True).backward()
    assert learnt.grad is not None
    clear = learnt.grad.abs() > 0.1 * learnt.grad.abs().mean()
    step = -tuning.MAP / len(weight) * learnt.grad.sign()
    torch.testing.assert_close((after - before)[clear].float(), step[clear], rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_what_is_clearly_worse_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MAP", 1e4)
    tuned, solved = (values(mapped("llama", build("llama"), tune)) for tune in (True, False))
    torch.testing.assert_close(tuned, solved, rtol=1e-6, atol=1e-7)  # learnt in single precision


STAND_INS = (("mlp", "affine"), ("attention", "constant"), ("activation", "affine"), ("activation", "slope_bias"))


def left(model: nn.Module, kind: str, leaves: str, tune: bool = True) -> list[Choice]:
    """Return the replacements of a kind's units in the middle of a model, tuned or not."""
    units = find_units(model, kinds=[kind])[1:3]
    with evaluating(model), pytest.MonkeyPatch.context() as patch:
        if not tune:
            patch.setattr(tuning, "is_differentiable", lambda model: False)
        own = Calibrator(model, samples_of("timm"), units, "calibrated")
        return own.finished(own.choose(units, {unit.name: Form(leaves) for unit in units}))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "leaves"), STAND_INS)
def test_what_other_units_leave_is_tuned_too(kind: str, leaves: str) -> None:
    tuned, solved = (left(build("timm"), kind, leaves, tune) for tune in (True, False))
    assert divergence("timm", tuned) < divergence("timm", solved)
    assert tuned[-1].divergence == pytest.approx(divergence("timm", tuned), rel=1e-4), "of all together"
    assert [choice.candidate.edit for choice in tuned] == [choice.candidate.edit for choice in solved]


def test_what_was_not_fitted_is_not_tuned() -> None:
    """A zero requested by name stays zero."""
    model = build("timm")
    units = find_units(model, kinds=["activation"])[1:2]
    with evaluating(model):
        own = Calibrator(model, samples_of("timm"), units, "zero")
        (choice,) = own.finished(own.choose(units))
    assert not any(value.any() for value in choice.candidate.values.values())
