"""The learning rate after a surgery: the curve, its scheduler, and steps at a share of the rate."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from cases.engine import equal
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR, LinearLR

from prunerecover import recovery_schedule
from prunerecover.recovery.scaled_steps import ScaledSteps, best_share
from prunerecover.recovery.schedule import RecoveryCurve


def optimizer_of(lr: float = 0.1) -> SGD:
    return SGD([nn.Parameter(torch.ones(2))], lr)


def rates_of(scheduler, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        found.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_scheduler_equals_two_of_torch_multiplied(shape: str) -> None:
    steps, warmup = 23, 5
    optimizer = optimizer_of()
    rise = LinearLR(optimizer, 1 / warmup, total_iters=warmup - 1)
    decay = CosineAnnealingLR(optimizer, steps) if shape == "cosine" else LinearLR(optimizer, 1, 0, total_iters=steps)
    expected = rates_of(ChainedScheduler([rise, decay], optimizer), steps)
    found = rates_of(recovery_schedule(optimizer_of(), steps, warmup, shape), steps)
    assert np.allclose(found, expected)
    assert np.argmax(found) == warmup - 1


@pytest.mark.parametrize(("warmup", "steps", "as_steps"), [(0.25, 40, 10), (60, 40, 40), (0, 40, 1), (0.5, 1, 1)])
def test_warmup_is_a_number_or_a_share_of_at_most_all(warmup: float, steps: int, as_steps: int) -> None:
    factors = [RecoveryCurve(warmup).factor(step, steps) for step in range(steps)]
    assert factors == [RecoveryCurve(as_steps).factor(step, steps) for step in range(steps)]
    assert factors[0] == 1 / as_steps


def test_state_of_the_scheduler_goes_on() -> None:
    whole = rates_of(recovery_schedule(optimizer_of(), 8), 8)
    part = recovery_schedule(optimizer_of(), 8)
    rates_of(part, 3)
    optimizer = optimizer_of()
    again = recovery_schedule(optimizer, 8)
    optimizer.load_state_dict(part.optimizer.state_dict())
    again.load_state_dict(part.state_dict())
    assert rates_of(again, 5) == whole[3:]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"steps": 0}, ValueError, "Expected argument steps to be at least 1, but got 0"),
        ({"steps": 1.5}, TypeError, "Expected argument steps to be a whole number, but got 1.5"),
        ({"warmup": "60"}, TypeError, "Expected argument warmup to be a number, but got '60'"),
        ({"warmup": True}, TypeError, "Expected argument warmup to be a number"),
        ({"warmup": -1}, ValueError, "Expected argument warmup to be a whole number of steps or a share below 1"),
        ({"warmup": 1.0}, ValueError, "or a share below 1, but got 1.0"),
        ({"warmup": float("nan")}, ValueError, "or a share below 1, but got nan"),
        ({"decay": "0.3"}, TypeError, "Expected argument decay to be a number, but got '0.3'"),
        ({"decay": 1.5}, ValueError, "a share of the steps between 0 and 1, but got 1.5. For example decay=0.3"),
        ({"shape": "step"}, ValueError, "Expected argument shape to be 'linear' or 'cosine', but got 'step'"),
    ],
)
def test_arguments(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        recovery_schedule(optimizer_of(), **{"steps": 10, **arguments})


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_the_decay_takes_a_share_of_the_steps(shape: str) -> None:
    """The decay equals a recovery from the step of the start on, after a constant rate."""
    curve, last = RecoveryCurve(0, shape, decay=0.25), RecoveryCurve(0, shape, decay=1.0)
    found = [curve.factor(step, 40) for step in range(41)]
    assert found[:30] == [1] * 30
    assert np.allclose(found[30:], [last.factor(step, 10) for step in range(11)])
    assert [RecoveryCurve(4, shape, decay=0).factor(step, 40) for step in (0, 3, 39, 40)] == [0.25, 1, 1, 1]


class Twice(AdamW):
    """Calls the parent's step, with hooks called again by torch."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize(("kind", "rate"), [(SGD, 0.1), (SGD, torch.tensor(0.1)), (Twice, 0.1)])
def test_a_scaled_step_equals_one_at_the_scaled_rate(kind: type[Optimizer], rate: float | torch.Tensor) -> None:
    AdamW([nn.Parameter(torch.ones(1))])  # only then torch has hooks in the parent's step
    one, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    scaled, plain = kind([one], lr=rate, foreach=False), kind([other], lr=rate * 0.25, foreach=False)
    steps = ScaledSteps([scaled], 0.25)
    for parameter, optimizer in ((one, scaled), (other, plain)):
        for _ in range(3):
            parameter.grad = parameter.detach() * 3
            optimizer.step()
    assert torch.equal(one, other)
    assert scaled.param_groups[0]["lr"] is rate
    steps.detach()
    plain.param_groups[0]["lr"] = rate
    before = one.detach().clone()
    scaled.step()
    plain.step()
    assert torch.equal(one, other)
    assert not torch.equal(one, before)


def test_the_closure_sees_the_own_rate_and_may_change_it() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer, seen = SGD([parameter], lr=0.1), []
    ScaledSteps([optimizer], 0.5)

    def closure():
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.param_groups[0]["lr"] = 0.4
        parameter.grad = torch.ones(2)

    optimizer.step(closure=closure)
    assert seen == [0.1]
    assert optimizer.param_groups[0]["lr"] == 0.4
    assert torch.allclose(parameter, torch.full((2,), 0.8))


def test_after_a_step_that_fails_rates_are_as_they_were() -> None:
    class Failing(SGD):
        def step(self, closure=None):
            raise RuntimeError

    optimizer = Failing([nn.Parameter(torch.ones(2))], lr=0.1)
    steps = ScaledSteps([optimizer], 0.5)
    with pytest.raises(RuntimeError):
        optimizer.step()
    steps.detach()
    assert optimizer.param_groups[0]["lr"] == 0.1


Problem = tuple[nn.Module, Optimizer, list[Callable[[], torch.Tensor]]]


def problem(kind: Callable[..., Optimizer], rate: float) -> Problem:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    inputs = torch.randn(16, 32, 4)
    losses = [partial(lambda x: (module(x) - x.sum(1, keepdim=True)).square().mean(), x) for x in inputs]
    return module, kind(module.parameters(), lr=rate), losses


MOMENTUM = partial(SGD, momentum=0.9)


def by_hand(share: float, kind: Callable[..., Optimizer], rate: float) -> float:
    """Return the mean of the last losses at a share of a rate, without restoring anything."""
    module, optimizer, losses = problem(kind, share * rate)
    found = []
    for loss_of in losses:
        found.append(loss_of())
        optimizer.zero_grad()
        found[-1].backward()
        optimizer.step()
    return sum(loss.item() for loss in found[-4:]) / 4


@pytest.mark.parametrize(("kind", "rate"), [(MOMENTUM, 0.01), (MOMENTUM, 5.0), (AdamW, 1.0)])
def test_the_best_share_is_that_of_trainings_by_hand(kind: Callable[..., Optimizer], rate: float) -> None:
    scores = {share: by_hand(share, kind, rate) for share in (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16)}
    expected = next(share for share in scores if scores.get(share / 2, np.inf) > scores[share])
    module, optimizer, losses = problem(kind, rate)
    assert best_share(module, optimizer, losses) == expected


@pytest.mark.parametrize("rate", [1e-4, 1e20])
def test_steps_that_are_left_out_say_nothing_but_the_last_ones(rate: float) -> None:
    """A loop without infinite losses skips all losses after too high a rate."""
    module, optimizer, losses = problem(SGD, rate)

    def guarded(index: int) -> torch.Tensor | None:
        loss = losses[index]()
        return None if index % 2 or not torch.isfinite(loss) else loss

    assert best_share(module, optimizer, [partial(guarded, i) for i in range(16)]) == (1 if rate < 1 else 1 / 16)


def test_a_test_of_shares_puts_all_back() -> None:
    module, optimizer, losses = problem(AdamW, 0.1)
    losses[0]().backward()
    optimizer.step()
    optimizer.zero_grad()
    before = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
    best_share(module, optimizer, losses)
    assert equal((module.state_dict(), optimizer.state_dict()), before)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_gradients_are_clipped_before_each_step() -> None:
    module, optimizer, losses = problem(SGD, 0.1)
    norms = []

    def clip() -> None:
        norms.append(float(nn.utils.clip_grad_norm_(module.parameters(), 1e-6)))

    assert best_share(module, optimizer, losses, clip) == 1  # whatever the share, nothing moves: the first stays
    assert min(norms) > 1e-6
