"""Values learnt on the output: the best epoch is kept, and none where none is better."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prunerecover.calibration import learning
from prunerecover.calibration.learning import (
    BIAS,
    SMALLEST,
    Held,
    best_epoch,
    gradients_of_output,
    tuned_on_output,
    tuned_parameters,
)
from prunerecover.calibration.steps import steps_of
from prunerecover.divergence.registry import output_divergence
from prunerecover.model.batches import as_inputs


@pytest.fixture
def held() -> Held:
    module = nn.Linear(1, 1, bias=False)
    module.weight.data.fill_(2.0)
    return Held.of(module.weight, module.weight.detach(), 4e-3)


def epochs(held: Held, divergences: list[float], first: float = math.inf) -> tuple[float, list[Tensor]]:
    left = iter(divergences)

    def gradients(number: int) -> list[Tensor]:
        return [2 * held.source.detach()]  # of its square

    return best_epoch([held], len(divergences) - 1, 1, gradients, lambda: next(left), first=first)


def test_the_start_is_kept_where_no_epoch_is_better(held: Held) -> None:
    assert epochs(held, [1.0, 1.05, 2.0]) == (1.0, [])


def test_the_epoch_of_the_least_divergence_is_kept(held: Held) -> None:
    divergence, (value,) = epochs(held, [3.0, 2.0, 1.0, 2.0])
    assert divergence == 1.0
    assert float(held.source) < float(value) < 2


@pytest.mark.parametrize(
    ("is_bias", "size", "rate"), [(False, 2.0, 0.2), (True, 2.0, 2 * BIAS), (True, 0.0, SMALLEST * BIAS)]
)
def test_steps_are_relative_to_the_size_of_a_parameter(is_bias: bool, size: float, rate: float) -> None:
    value = torch.tensor([size, -size])
    assert Held.of(nn.Parameter(value), value, 0.1, is_bias=is_bias).rate == pytest.approx(rate)


@pytest.mark.parametrize(("samples", "wanted"), [(256, 4), (1280, 4), (1712, 3), (2560, 2), (16000, 2)])
def test_more_samples_take_fewer_epochs(samples: int, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    dense, x = nn.Linear(4, 3), as_inputs(torch.randn(samples, 4))
    steps, seen = steps_of(dense, [x.select(torch.arange(128))], lambda _: [x.select(torch.arange(128, samples))]), []
    monkeypatch.setattr(learning, "EPOCHS", 4)  # the tests of planning learn for an epoch
    network = copy.deepcopy(dense)
    held = [Held.of(network.weight, network.weight.detach(), 1e-3)]
    tuned_on_output(network, held, steps, lambda: seen.append(0) or 1.0)
    assert len(steps.batches) == samples // 16
    assert len(seen) == 1 + wanted


@pytest.mark.parametrize("samples", [1, 7, 16])
def test_the_parts_of_a_step_have_the_gradient_of_the_step(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is asked for once, apart, as ranks do."""
    torch.manual_seed(0)
    dense, x = nn.Linear(4, 3), as_inputs(torch.randn(samples, 4))
    network, asked = nn.Linear(4, 3), []
    held = [Held.of(network.weight, network.weight.detach(), 1e-3)]
    monkeypatch.setattr(learning, "best_epoch", lambda _, __, ___, gradients, *____, **_____: gradients(0))

    def spread(what: str, parts: int, compute: Callable[[int], Any]) -> list[Any]:
        asked.append((what, parts))
        return [compute(part) for part in reversed(range(parts))][::-1]

    (found,) = tuned_on_output(network, held, steps_of(dense, [x]), lambda: 1.0, spread=spread)
    few = min(samples, 4)  # of a step
    output_divergence(dense(x.args[0][:few]), network(x.args[0][:few])).backward()
    torch.testing.assert_close(found, network.weight.grad)
    assert asked == [("gradients 0", min(2, samples))]


@pytest.mark.parametrize("rates", [(1e6,), (1e6, 3e-3), (3e-3,)])
def test_the_first_rate_that_helps_goes_on(rates: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    dense, x = nn.Linear(4, 3), as_inputs(torch.randn(32, 4))
    network = copy.deepcopy(dense)
    network.weight.data += 0.1 * torch.randn(3, 4)
    values = {"weight": network.weight.detach().clone()}

    @torch.no_grad()
    def divergence() -> float:
        return float(output_divergence(dense(*x.args), network(*x.args)))

    start = divergence()
    monkeypatch.setattr(learning, "RATES", rates)
    parameters = {"weight": network.weight}
    found = tuned_parameters(network, parameters, values, steps_of(dense, [x]), divergence, lambda _: False)
    assert found.keys() == (set() if rates == (1e6,) else {"weight"})
    network.weight.data = found.get("weight", values["weight"])
    assert not found or divergence() < 0.9 * start


@pytest.mark.parametrize(("first", "kept"), [(1.0, 0), (1.1, 1)])
def test_learning_ends_where_the_first_epoch_is_worse_than_it_may_be(held: Held, first: float, kept: int) -> None:
    divergence, values = epochs(held, [1.0, 1.05, 0.5], first=first)
    assert (divergence, len(values)) == ((0.5, 1) if kept else (1.0, 0))


def test_gradients_are_those_of_the_divergence() -> None:
    torch.manual_seed(0)
    network, x = nn.Linear(4, 3), torch.randn(8, 4)
    dense = torch.randn(8, 3)
    (found,) = gradients_of_output(network, as_inputs(x), dense, [network.weight])
    log_p, log_q = dense.log_softmax(-1), network(x).log_softmax(-1)
    (log_p.exp() * (log_p - log_q)).sum(-1).mean().backward()
    torch.testing.assert_close(found, network.weight.grad)


WITHOUT: dict[str, Callable[[Tensor], Tensor]] = {
    "stops gradients": Tensor.detach,
    "another number of outputs": lambda output: output[:, :2],
    "an infinite gradient": lambda output: (output * 0).abs().sqrt(),
}


@pytest.mark.parametrize("what", WITHOUT)
def test_there_are_none_where_the_output_has_none(what: str) -> None:
    network = nn.Linear(4, 3)
    network.register_forward_hook(lambda _, __, output: WITHOUT[what](output))
    assert gradients_of_output(network, as_inputs(torch.randn(8, 4)), torch.randn(8, 3), [network.weight]) == ()


def test_no_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    network = nn.Linear(4, 3)
    monkeypatch.setattr(network, "forward", full)
    with pytest.warns(UserWarning, match="There is no memory to tune what stands in for removed units"):
        assert gradients_of_output(network, as_inputs(torch.randn(8, 4)), torch.randn(8, 3), [network.weight]) == ()
