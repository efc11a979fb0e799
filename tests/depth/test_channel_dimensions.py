"""Fitted replacements know the dimension of the channels where a module changes the layout of its own output."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from cases.depth.fitted import apart, seeded
from torch import Tensor, nn

from prunerecover import Plan, plan_depth
from prunerecover.plan.edit_parts import StandIn
from prunerecover.plan.edits import Bypass

WIDTH, LENGTH = 6, 9


class TokenConvolution(nn.Conv1d):
    """A convolution over tokens, `(N, T, C)`, as one layer."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class Tokens(nn.Module):
    """A branch that ends with a convolution, and returns tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.convolution = nn.Linear(WIDTH, 12), nn.Conv1d(12, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(self.linear(x).transpose(1, 2)).transpose(1, 2)  # type: ignore[no-any-return]


class Positions(nn.Module):
    """A branch that ends with a linear layer, and returns channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.transpose(1, 2))).transpose(1, 2)  # type: ignore[no-any-return]


class Between(nn.Module):
    """A linear layer along the second last dimension."""

    def __init__(self, given: int = WIDTH) -> None:
        super().__init__()
        self.linear = nn.Linear(given, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.transpose(-1, -2)).transpose(-1, -2)  # type: ignore[no-any-return]


class Residual(nn.Module):
    """A block of two branches."""

    def __init__(self, branch: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.one, self.other = branch(), branch()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.one(x)
        return x + self.other(x)  # type: ignore[no-any-return]


def residual(branch: Callable[[], nn.Module], *, channels_first: bool = False) -> nn.Sequential:
    first, last = (
        (nn.Conv1d(3, WIDTH, 1), nn.Conv1d(WIDTH, 5, 1))
        if channels_first
        else (nn.Linear(3, WIDTH), nn.Linear(WIDTH, 5))
    )
    return nn.Sequential(first, Residual(branch), Residual(branch), last)


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, WIDTH), TokenConvolution(), nn.Linear(WIDTH, 5))


def fitted(plan: Plan) -> list[StandIn]:
    """Return the fitted replacements of a plan."""
    return [one for edit in plan.edits if isinstance(edit, Bypass) for one in edit.modules.values() if one.channels]


CASES: dict[str, tuple[Callable[[], nn.Module], str, bool, int]] = {
    "a layer of tokens": (plain, "layer", False, -1),
    "a branch of tokens": (partial(residual, Tokens), "mlp", False, -1),
    "a branch of channels": (partial(residual, Positions, channels_first=True), "mlp", True, 1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("length", [LENGTH, WIDTH])  # as many positions as channels, too
def test_channels_are_followed_through_a_change_of_the_layout(name: str, length: int) -> None:
    make, kind, first, dim = CASES[name]
    dense = seeded(make)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn((4, 16, 3, length) if first else (4, 16, length, 3), generator=generator)
    plan = plan_depth(dense, remove={kind: 1}, batches=list(x))
    form = "slope_bias" if kind == "layer" else "affine"  # another map in a layer's place would save nothing
    assert [(one.leaves, one.dim, one.channels) for one in fitted(plan)] == [(form, dim, WIDTH)]
    longer = torch.cat([x[0], x[1]], dim=-1 if first else 1)
    error = apart(dense, plan, longer) / float(dense(longer).detach().var())
    assert error < (0.5 if kind == "layer" else 0.01)  # the branches are linear


def test_channels_between_other_dimensions_have_no_replacement() -> None:
    dense = seeded(
        lambda: nn.Sequential(Between(3), Residual(Between), Residual(Between), nn.Flatten(), nn.LazyLinear(4))
    )
    x = torch.randn(4, 16, 5, 3, 7, generator=torch.Generator().manual_seed(1))
    dense(x[0])  # the size of the last layer
    plan = plan_depth(dense, remove={"mlp": 1}, batches=list(x))
    assert plan.removed["mlp"]
    assert not fitted(plan)
