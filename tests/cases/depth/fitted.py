"""Networks without a family, beside what is left of them without some units."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from prunerecover import Plan, apply_plan
from prunerecover.plan.edits import Bypass


class Mixing(nn.Module):
    """A residual block without anything nonlinear: an affine map is all of it."""

    def __init__(self, images: bool = True, inner: int = 12, kernel: int = 1) -> None:
        super().__init__()
        make = partial(nn.Conv2d, kernel_size=kernel, padding=kernel // 2) if images else nn.Linear
        self.a, self.b = make(6, inner), make(inner, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(self.a(x))  # type: ignore[no-any-return]


class Bent(Mixing):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(self.a(x).relu())  # type: ignore[no-any-return]


def batches_of(*shape: int) -> list[Tensor]:
    return list(torch.randn((4, 16, *shape), generator=torch.Generator().manual_seed(1)))


def pruned(dense: nn.Module, plan: Plan) -> nn.Module:
    copied = copy.deepcopy(dense)
    apply_plan(copied, plan)
    return copied


def apart(dense: nn.Module, plan: Plan, x: Tensor) -> float:
    return float((pruned(dense, plan)(x) - dense(x)).detach().square().mean())


def leaves(plan: Plan) -> set[str]:
    return {edit.leaves for edit in plan.edits if isinstance(edit, Bypass)}


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().eval()
