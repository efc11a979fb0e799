"""The learning rate after a surgery: the curve, its scheduler, and steps at a share of the rate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR, LinearLR

from prunerecover import recovery_schedule
from prunerecover.recovery.scaled_steps import ScaledSteps
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


def test_nothing_is_left_after_the_last_step() -> None:
    curve = RecoveryCurve(2)
    assert curve.factor(5, 6) > 0
    assert [curve.factor(step, 6) for step in (6, 7)] == [0, 0]
    assert curve.factor(0, 0) == 0


def test_made_anew_it_begins_at_the_same_rates() -> None:
    optimizer = optimizer_of()
    first = rates_of(recovery_schedule(optimizer, 8, 2), 8)
    assert optimizer.param_groups[0]["lr"] == 0
    assert rates_of(recovery_schedule(optimizer, 8, 2), 8) == first


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
        ({"warmup": "60"}, TypeError, "Expected argument warmup to be a number of steps or a share, but got '60'"),
        ({"warmup": True}, TypeError, "Expected argument warmup to be a number of steps"),
        ({"warmup": -1}, ValueError, "Expected argument warmup to be a whole number of steps or a share below 1"),
        ({"warmup": 1.0}, ValueError, "or a share below 1, but got 1.0"),
        ({"warmup": float("nan")}, ValueError, "or a share below 1, but got nan"),
        ({"shape": "step"}, ValueError, "Expected argument shape to be 'linear' or 'cosine', but got 'step'"),
    ],
)
def test_arguments(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        recovery_schedule(optimizer_of(), **{"steps": 10, **arguments})


class Twice(AdamW):
    """Calls the step of its parent, whose hooks torch calls again."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("kind", [SGD, AdamW, Twice])
@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
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
    one.grad, other.grad = torch.ones(2), torch.ones(2)
    before = one.detach().clone()
    scaled.step()
    plain.param_groups[0]["lr"] = rate
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


@pytest.mark.parametrize("within", ["closure", "step"])
def test_after_a_step_that_fails_rates_are_as_they_were(within: str) -> None:
    class Failing(SGD):
        def step(self, closure=None):
            if closure is not None:
                closure()
            raise RuntimeError

    def closure():
        raise RuntimeError

    optimizer = Failing([nn.Parameter(torch.ones(2))], lr=0.1)
    steps = ScaledSteps([optimizer], 0.5)
    with pytest.raises(RuntimeError):
        optimizer.step(closure=closure if within == "closure" else None)
    steps.detach()
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.slow
def test_the_trainer_of_transformers_takes_it(tmp_path) -> None:
    from cases.models.tiny import tiny_llama
    from transformers import Trainer, TrainingArguments

    model = tiny_llama()
    optimizer = SGD(model.parameters(), 0.1)
    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (8, 6))]
    settings = {"max_steps": 8, "per_device_train_batch_size": 1, "report_to": [], "logging_steps": 1, "use_cpu": True}
    settings |= {"lr_scheduler_type": "constant", "save_strategy": "no", "disable_tqdm": True}
    arguments = TrainingArguments(str(tmp_path), **settings)
    trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, recovery_schedule(optimizer, 8, 2)))
    trainer.train()
    rates = [line["learning_rate"] for line in trainer.state.log_history if "learning_rate" in line]
    assert np.allclose(rates, rates_of(recovery_schedule(optimizer_of(), 8, 2), 8))
