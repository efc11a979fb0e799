"""Where samples lie along another dimension than the first, units get the scores that they get where they lie there."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from prunerecover import Budget, apply_plan, find_groups, plan_width
from prunerecover.graph.dimensions.samples import SampleLayout
from prunerecover.graph.trace import trace
from prunerecover.importance.measuring.unit_slices import units_of
from prunerecover.model.batches import ModelInputs, is_padding
from prunerecover.plan.groups import Tap

N = 8
WAYS = ("first", "second", "in one", "in one, second")
EXPECTED = {
    "first": SampleLayout(),
    "second": SampleLayout(dim=1),
    "in one": SampleLayout(),
    "in one, second": SampleLayout(apart=True),
}


class Encoder(nn.Module):
    """An MLP over tokens, between a recurrent layer and a head, with samples laid in one of four ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.embed = nn.Embedding(50, 12)
        self.recurrent = nn.GRU(12, 12, batch_first=way in ("first", "in one"))
        self.up, self.down = nn.Linear(12, 24), nn.Linear(24, 12)
        self.head = nn.Linear(12, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens if self.way in ("first", "in one") else tokens.t())
        x, _ = self.recurrent(x)
        laid = x.flatten(0, 1) if self.way.startswith("in one") else x
        x = x + self.down(self.up(laid).relu()).view(x.shape)
        last: Tensor = self.head(x[:, -1] if self.way in ("first", "in one") else x[-1])
        return last


def tokens(length: int) -> Tensor:
    return torch.randint(0, 50, (N, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("length", [5, N, 2 * N])  # also where positions and samples could be taken for each other
@pytest.mark.parametrize("way", WAYS)
def test_two_passes_tell_where_samples_lie(way: str, length: int) -> None:
    batch = tokens(length)
    for some in (batch, batch[:1]):
        layouts = trace(Encoder(way).eval(), ModelInputs((some,))).layouts
        assert layouts["up", "input"] == layouts["down", "output"] == EXPECTED[way]
        assert layouts["head", "input"] == SampleLayout()


@pytest.mark.parametrize("length", [5, 2 * N])
def test_one_network_in_four_layouts_has_one_plan(length: int) -> None:
    batches = [(tokens(length), torch.arange(N) % 5)]
    dense = Encoder("first").eval()
    wanted, *others = [plan_width(Encoder(way).eval(), Budget(params=0.2), batches=batches) for way in WAYS]
    pruned = copy.deepcopy(dense)
    apply_plan(pruned, wanted)
    for plan in others:
        assert plan.removed == wanted.removed
        other = copy.deepcopy(dense)
        apply_plan(other, plan)
        torch.testing.assert_close(other(batches[0][0]), pruned(batches[0][0]))


def test_a_network_of_one_batch_size_keeps_samples_first() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).view(N, -1).relu())  # type: ignore[no-any-return]

    (group,) = find_groups(Fixed(), torch.randn(N, 4)).groups
    assert [(tap.samples, tap.apart) for tap in group.taps] == [(0, False)]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("samples", "dim"), [(0, -1), (1, -1), (0, 1), (2, 0), (1, 0)])
def test_units_of_any_layout_are_those_of_samples_first(samples: int, dim: int, apart: bool) -> None:
    n, k, size, span = 3, 4, 5, 2
    units = torch.randn(n, k, 6, size * span)  # by sample, position, another dimension, and entry
    rows = (units.transpose(0, 1) if apart else units).reshape(n * k, 6, size * span)
    first = units.reshape(n * k, 6, size * span)
    laid = rows.permute(*_order(samples, dim))
    tap = Tap("x", dim=dim, span=span, samples=samples, apart=apart)
    wanted = units_of(first, Tap("x", dim=-1, span=span), size, n)
    torch.testing.assert_close(units_of(laid, tap, size, n).sort(-1).values, wanted.sort(-1).values, rtol=0, atol=0)


def _order(samples: int, dim: int) -> list[int]:
    order = [1, 1, 1]
    order[samples], order[dim] = 0, 2
    return order


def test_padding_is_that_of_the_tokens_in_either_layout() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    inputs = ModelInputs(kwargs={"attention_mask": mask})
    assert torch.equal(is_padding(inputs, torch.zeros(2, 3)), mask == 0)
    assert torch.equal(is_padding(inputs, torch.zeros(3, 2)), (mask == 0).t())
