"""Values learnt on the output: the best epoch is kept, and none where none is better."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from prunerecover.calibration.learning import Held, best_epoch, gradients_of_output
from prunerecover.model.batches import as_inputs


@pytest.fixture
def held() -> Held:
    module = nn.Linear(1, 1, bias=False)
    module.weight.data.fill_(2.0)
    return Held.of(module, "weight", module.weight.detach(), 100)


def epochs(
    held: Held, divergences: list[float], worse: float = 1.0, first: float = math.inf
) -> tuple[float, list[Tensor]]:
    left = iter(divergences)

    def gradients(number: int) -> list[Tensor]:
        return [2 * held.source.detach()]  # of its square

    return best_epoch([held], len(divergences) - 1, 1, gradients, lambda: next(left), worse=worse, first=first)


@pytest.mark.parametrize(("worse", "kept"), [(1.0, 0), (1.1, 1)])
def test_an_epoch_that_is_little_worse_than_the_start_is_kept_where_it_may_be(
    held: Held, worse: float, kept: int
) -> None:
    assert len(epochs(held, [1.0, 1.05, 2.0], worse)[1]) == kept


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


class Torn(nn.Linear):
    """Stops gradients at the output."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class Wrong(nn.Linear):
    """Returns another number of outputs."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, :2]


class Unbounded(nn.Linear):
    """Has an infinite gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) * 0).abs().sqrt()


@pytest.mark.parametrize("network", [Torn, Wrong, Unbounded])
def test_there_are_none_where_the_output_has_none(network: type[nn.Linear]) -> None:
    one = network(4, 3)
    assert gradients_of_output(one, as_inputs(torch.randn(8, 4)), torch.randn(8, 3), [one.weight]) == ()


def test_no_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    network = nn.Linear(4, 3)
    monkeypatch.setattr(network, "forward", full)
    with pytest.warns(UserWarning, match="There is no memory to tune what stands in for removed units"):
        assert gradients_of_output(network, as_inputs(torch.randn(8, 4)), torch.randn(8, 3), [network.weight]) == ()


def test_the_epoch_of_the_least_divergence_is_kept(held: Held) -> None:
    divergence, (value,) = epochs(held, [3.0, 2.0, 1.0, 2.0])
    assert divergence == 1.0
    assert float(held.source) < float(value) < 2
