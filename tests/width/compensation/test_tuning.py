"""What weights take over is tuned on the output: from the solution of least squares on, on other samples than judge."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.width.plan_width import cnn, vit
from torch import Tensor, nn

from prunerecover import Budget, apply_plan, plan_width
from prunerecover.calibration.divergence import output_divergence
from prunerecover.model.batches import CalibrationSet, split_batches
from prunerecover.model.copies import deep_copy
from prunerecover.plan.edits import Edit
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.width import tuning
from prunerecover.width.arguments import WidthRule
from prunerecover.width.narrowed_output import NarrowedOutput, judge_of
from prunerecover.width.planner import WidthPlanner
from prunerecover.width.taken_over import TakenOver, taken_over
from prunerecover.width.tuning import tuned

IMAGES = torch.randn(64, 3, 16, 16, generator=torch.Generator().manual_seed(3))
CPU = torch.device("cpu")


class Joined(nn.Module):
    """Two groups one after the other in what reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 6, 3), nn.Conv2d(3, 8, 3), nn.Conv2d(14, 9, 3, bias=False)
        self.head = nn.Linear(9 * 144, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Read both in one convolution, and its flattened map in a linear layer."""
        together = torch.cat([self.first(x).relu(), self.second(x).relu()], 1)
        return self.head(self.last(together).relu().flatten(1))


MODELS = {"concatenated, flattened": Joined, "padded shortcuts": cnn, "heads": vit}


def spread(model: nn.Module) -> nn.Module:
    """Have a network without training tell samples apart, as others do."""
    *_, head = (module for module in model.modules() if isinstance(module, nn.Linear))
    with torch.no_grad():
        head.weight.mul_(30)
    return model


def narrowed(make: Any, share: float = 0.3) -> tuple[nn.Module, tuple[Edit, ...], dict[str, Tensor], CalibrationSet]:
    """Return a model, edits of a plan in width, what least squares say, and the samples they are fitted to."""
    torch.manual_seed(0)
    model = spread(make().eval())
    planner = WidthPlanner(model, batches=[(images, torch.arange(8) % 4) for images in IMAGES.split(8)])
    plan = planner.plan(Budget(params=share), WidthRule(allocation="uniform"), in_part=True)
    return model, plan.edits, dict(plan.tensors), split_batches(list(IMAGES.split(8)), CPU)


def in_place(
    model: nn.Module, edits: tuple[Edit, ...], tensors: dict[str, Tensor]
) -> tuple[nn.Module, list[TakenOver]]:
    """Return the pruned model and what is learnt in it."""
    network = deep_copy(model)
    apply_edits(network, edits, tensors)
    return network, taken_over(model, network, edits, tensors)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_numbers_in_place_are_those_of_the_plan(make: Any) -> None:
    """Other numbers, written into the pruned network, are what surgery with them makes of the dense one."""
    model, edits, tensors, _ = narrowed(make)
    network, learnt = in_place(model, edits, tensors)
    assert [one.key for one in learnt] == list(tensors)
    for one in learnt:
        one.coefficients.add_(torch.randn_like(one.coefficients))
        one.put_in_place()
    again = deep_copy(model)
    apply_edits(again, edits, {one.key: one.prediction() for one in learnt})
    for name, value in again.named_parameters():
        torch.testing.assert_close(network.get_parameter(name), value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_gradients_are_those_of_the_numbers(make: Any) -> None:
    """A small step along the gradient changes the divergence by as much as its square, times the step."""
    model, edits, tensors, samples = narrowed(make)
    network, learnt = in_place(model.double(), edits, {key: value.double() for key, value in tensors.items()})
    inputs = torch.cat([batch.args[0] for batch in samples.fit]).double()
    dense = model(inputs).detach()
    before = output_divergence(dense, network(inputs))
    for one, found in zip(learnt, torch.autograd.grad(before, [one.weight for one in learnt]), strict=True):
        one.differentiate(found)
    length = sum(float(gradient(one).square().sum()) for one in learnt)
    step = 1e-3 * float(before) / length
    for one in learnt:
        one.coefficients.sub_(step * gradient(one))
        one.put_in_place()
    after = output_divergence(dense, network(inputs))
    assert float(before - after) == pytest.approx(step * length, rel=0.05)


def gradient(one: TakenOver) -> Tensor:
    assert one.coefficients.grad is not None
    return one.coefficients.grad


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_output_is_closer_on_samples_that_nothing_was_fitted_to(make: Any) -> None:
    model, edits, tensors, samples = narrowed(make)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    judge = judge_of(model, samples)
    found = tuned(edits, tensors, samples, judge)
    assert judge.divergence(edits, found) < judge.divergence(edits, tensors)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_the_epoch_is_kept_that_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    model, edits, tensors, samples = narrowed(vit)
    judge, seen = judge_of(model, samples), list[float]()
    divergence = judge.divergence

    def watched(*args: Any) -> float:
        seen.append(divergence(*args))
        return seen[-1]

    monkeypatch.setattr(judge, "divergence", watched)
    found = tuned(edits, tensors, samples, judge)
    assert len(seen) == 1 + tuning.EPOCHS
    assert divergence(edits, found) == min(seen)


def test_least_squares_stay_where_every_epoch_is_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunerecover.width.taken_over.RATE", 100.0)
    model, edits, tensors, samples = narrowed(vit)
    assert tuned(edits, tensors, samples, judge_of(model, samples)) == tensors


def test_nothing_is_learnt_of_few_samples() -> None:
    model, edits, tensors, _ = narrowed(vit)
    few = split_batches([IMAGES[:7]], CPU)
    assert tuned(edits, tensors, few, judge_of(model, few)) == tensors


def test_nothing_is_learnt_of_more_numbers_than_memory_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model, edits, tensors, samples = narrowed(vit)
    monkeypatch.setattr(tuning, "MOST_LEARNT", sum(value[:, :-1].numel() for value in tensors.values()) - 1)
    assert tuned(edits, tensors, samples, judge_of(model, samples)) == tensors


def test_nothing_is_learnt_of_outputs_without_gradients() -> None:
    class Detached(Joined):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    model, edits, tensors, samples = narrowed(Joined)
    other = Detached().eval()
    other.load_state_dict(model.state_dict())
    assert tuned(edits, tensors, samples, judge_of(other, samples)) == tensors


def test_nothing_is_learnt_of_outputs_that_cannot_be_compared() -> None:
    model, edits, tensors, samples = narrowed(Joined)
    judge = NarrowedOutput(model, samples.held_out)
    judge.comparable = False
    assert tuned(edits, tensors, samples, judge) == tensors


def test_dense_outputs_that_were_not_kept_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, edits, tensors, samples = narrowed(vit)
    kept = tuned(edits, tensors, samples, judge_of(model, samples))
    monkeypatch.setattr(tuning, "MOST_KEPT", 0)
    found = tuned(edits, tensors, samples, judge_of(model, samples))
    assert all(torch.equal(found[key], value) for key, value in kept.items())


def test_large_batches_make_for_as_many_steps() -> None:
    (one,) = split_batches([IMAGES], CPU).fit
    assert [batch.n_samples for batch in tuning._of_few_samples([one])] == [32, 16]


def test_what_a_user_plans_is_tuned_and_the_same_each_time() -> None:
    batches = [(images, torch.arange(8) % 4) for images in IMAGES.split(8)]
    plans = [plan_width(spread(vit()), Budget(macs=0.4), batches=batches) for _ in range(2)]
    assert all(torch.equal(plans[1].tensors[key], value) for key, value in plans[0].tensors.items())
    untuned = WidthPlanner(spread(vit()), batches=batches).plan(Budget(macs=0.4), in_part=True)
    assert untuned.edits == plans[0].edits
    inputs = torch.cat([batch.args[0] for batch in split_batches([i for i, _ in batches], CPU).held_out])
    divergences = []
    for plan in (plans[0], untuned):
        pruned = spread(vit())
        apply_plan(pruned, plan)
        with torch.inference_mode():
            divergences.append(float(output_divergence(spread(vit())(inputs), pruned(inputs))))
    assert divergences[0] < divergences[1]
