"""Branches that only the graph knows leave a constant or an affine map, however they are added."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from prunerecover import Plan, apply_plan, plan_depth
from prunerecover.model.replacements import Affine, Constant
from prunerecover.plan.edits import Bypass


def pruned(dense: nn.Module, plan: Plan) -> nn.Module:
    copied = copy.deepcopy(dense)
    apply_plan(copied, plan)
    return copied


class Sums(nn.Module):
    """Two branches of one stream, added in one of several ways.

    Args:
        way: Of the sum.
        leaf: Whether the branch gives the same whatever it reads.
    """

    def __init__(self, way: str, leaf: bool) -> None:
        super().__init__()
        self.way = way
        make = partial(nn.Conv2d, kernel_size=1) if way in ("images", "in place", "code") else nn.Linear
        self.stem, self.head = make(3, 6), make(6, 5)
        self.first, self.second = make(6, 12), make(12, 6)
        self.third, self.fourth = make(6, 12), make(12, 6)
        if leaf:
            self.second.weight.data.zero_()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.way == "moved":
            x = x + self.second(self.first(x.transpose(1, 2))).transpose(1, 2)
        elif self.way == "in place":
            added = self.second(self.first(x))
            added += x
            x = added
        elif self.way == "code":
            x = x + self.second(self.first(x).abs())
        else:
            x = x + self.second(self.first(x))
        x = x + self.fourth(self.third(x).relu())
        return self.head(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", ["rows", "images", "moved", "in place", "code"])
@pytest.mark.parametrize("leaf", [True, False], ids=["constant", "affine"])
def test_linear_branches_are_what_they_were(way: str, leaf: bool) -> None:
    torch.manual_seed(0)
    dense = Sums(way, leaf).eval()
    shape = (16, 7, 7, 3) if way in ("rows", "moved") else (16, 3, 7, 7)
    batches = [torch.randn(shape) for _ in range(4)]
    plan = plan_depth(dense, remove={"mlp": 1}, batches=batches, ignore=["third+fourth"])
    (edit,) = (edit for edit in plan.edits if isinstance(edit, Bypass))
    assert edit.leaves == ("constant" if leaf else "affine")
    x = torch.randn(shape)
    apart = (pruned(dense, plan)(x) - dense(x)).abs().max() / dense(x).abs().max()
    bare = plan_depth(
        dense, remove={"mlp": 1}, batches=batches, ignore=["third+fourth"], replace="zero", importance="magnitude"
    )
    least = (pruned(dense, bare)(x) - dense(x)).abs().max() / dense(x).abs().max()
    bound = least if way == "code" and not leaf else 0.1 * least
    assert apart < bound


def test_what_is_fitted_stays_where_nothing_else_is_left_in_a_module() -> None:
    class Residual(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return x + self.inner(x)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    branch = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))
    dense = nn.Sequential(nn.Linear(3, 6), Residual(branch), nn.LayerNorm(6), nn.Linear(6, 5)).eval()
    plan = plan_depth(dense, remove={"mlp": 1}, batches=[torch.randn(16, 3) for _ in range(4)])
    after = pruned(dense, plan)
    assert [type(one) for one in after.modules() if isinstance(one, Affine | Constant)]
    assert not torch.equal(after(torch.ones(2, 3)), after[3](after[2](after[0](torch.ones(2, 3)))))  # type: ignore[index]


class Scaled(nn.Module):
    """A branch inside which code with a weight of its own runs, and which always adds the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(6))
        self.second.weight.data.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(x + self.scale * self.first(x))  # type: ignore[no-any-return]


def test_no_constant_takes_the_gradient_of_code_before_it() -> None:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(3, 6), Scaled(), nn.Linear(6, 5)).eval()
    batches = [torch.randn(16, 7, 3) for _ in range(4)]
    plan = plan_depth(dense, remove={"mlp": 1}, batches=batches, ignore=["1.first"])
    left = pruned(dense, plan)
    assert [edit.leaves for edit in plan.edits if isinstance(edit, Bypass)] == ["affine"]
    left(torch.randn(2, 7, 3)).square().mean().backward()
    assert all(parameter.grad is not None for parameter in left.parameters())


def test_what_memory_has_no_room_for_is_fitted_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    dense, batches = Sums("rows", leaf=False).eval(), [torch.randn(16, 7, 3) for _ in range(4)]
    once = plan_depth(dense, remove={"mlp": 2}, batches=batches)
    monkeypatch.setattr("prunerecover.calibration.stand_in_fits.MOST_NUMBERS", 1)
    apart = plan_depth(dense, remove={"mlp": 2}, batches=batches)
    assert once.edits == apart.edits
    assert all(torch.equal(apart.tensors[key], value) for key, value in once.tensors.items())
