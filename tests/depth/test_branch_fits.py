"""Branches leave something fitted however they are added, and identities where nothing would fit."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from cases.depth.fitted import Bent, apart, batches_of, leaves, pruned, seeded
from torch import Tensor, nn

from prunerecover import plan_depth
from prunerecover.model.replacements import Affine, Constant, SlopeBias
from prunerecover.plan.edit_parts import StandIn
from prunerecover.plan.edits import Bypass
from prunerecover.surgery.apply_edits import apply_edits

IMAGES = (3, 5, 5)


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
def test_linear_branches_are_what_they_were_however_they_are_added(way: str, leaf: bool) -> None:
    dense = seeded(partial(Sums, way, leaf))
    shape = (7, 7, 3) if way in ("rows", "moved") else (3, 7, 7)
    how = {"remove": {"mlp": 1}, "batches": batches_of(*shape), "ignore": ["third+fourth"]}
    plan = plan_depth(dense, **how)
    assert leaves(plan) == {"constant" if leaf else "affine"}
    bare, x = plan_depth(dense, **how, replace="zero", importance="magnitude"), torch.randn(16, *shape)
    assert apart(dense, plan, x) < (1 if way == "code" and not leaf else 0.01) * apart(dense, bare, x)


def test_what_memory_has_no_room_for_is_fitted_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = seeded(partial(Sums, "rows", False))
    once = plan_depth(dense, remove={"mlp": 2}, batches=batches_of(7, 3))
    monkeypatch.setattr("prunerecover.calibration.stand_in_fits.MOST_NUMBERS", 1)
    parts = plan_depth(dense, remove={"mlp": 2}, batches=batches_of(7, 3))
    assert once.edits == parts.edits
    assert all(torch.equal(parts.tensors[key], value) for key, value in once.tensors.items())


def test_what_is_fitted_stays_where_nothing_else_is_left_in_a_module() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.inner(x)  # type: ignore[no-any-return]

    dense = seeded(lambda: nn.Sequential(nn.Linear(3, 6), Residual(), nn.LayerNorm(6), nn.Linear(6, 5)))
    after = pruned(dense, plan_depth(dense, remove={"mlp": 1}, batches=batches_of(3)))
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
    dense = seeded(lambda: nn.Sequential(nn.Linear(3, 6), Scaled(), nn.Linear(6, 5)))
    plan = plan_depth(dense, remove={"mlp": 1}, batches=batches_of(7, 3), ignore=["1.first"])
    left = pruned(dense, plan)
    assert leaves(plan) == {"affine"}
    left(torch.randn(2, 7, 3)).square().mean().backward()
    assert all(parameter.grad is not None for parameter in left.parameters())


class Picking(nn.Module):
    """Returns as many rows as are above zero, as detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 5, 1)
        self.body = nn.Sequential(*(Bent() for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.head(self.body(self.stem(x))).movedim(1, -1).flatten(0, -2)
        return rows[rows[:, 0] > 0]  # type: ignore[no-any-return]


def test_outputs_of_other_shapes_leave_identities() -> None:
    plan = plan_depth(seeded(Picking), remove={"block": 1}, batches=batches_of(*IMAGES), importance="magnitude")
    assert leaves(plan) == {"identity"}


def test_widths_that_follow_a_layer_leave_identities() -> None:
    """A layer of another width is narrowed first, and what was fitted for all channels would not fit."""
    torch.manual_seed(0)
    wide = [nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 12), nn.ReLU()]
    dense = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), *wide, nn.Linear(12, 5)).eval()
    plan = plan_depth(dense, remove={"layer": 3}, batches=batches_of(3), ignore=["0"])
    assert any(edit.op == "narrow" for edit in plan.edits)
    assert not plan.tensors
    assert pruned(dense, plan)(torch.randn(16, 3)).shape == (16, 5)


class Serving(nn.Module):
    """A convolution, its norm, and an activation that others call, too."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))  # type: ignore[no-any-return]


def test_layers_that_share_an_activation_leave_identities() -> None:
    act = nn.SiLU()
    net = nn.Sequential(*[Serving(act) for _ in range(3)], nn.Conv2d(4, 2, 1)).eval()
    plan = plan_depth(net, remove={"layer": 1}, batches=batches_of(4, 5, 5))
    assert leaves(plan) == {"identity"}
    assert pruned(net, plan)(torch.ones(1, 4, 5, 5)).shape == (1, 2, 5, 5)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 5, 5), (4, 3, 2, 2, 2)])
def test_a_map_of_dimension_1_is_the_one_of_the_last_moved_and_a_slope_is_its_diagonal(shape: tuple[int, ...]) -> None:
    first, last, slope, x = Affine(3, dim=1), Affine(3), SlopeBias(3, dim=1), torch.randn(shape)
    slope.slope.data, bias = torch.randn(3), torch.randn(3)
    slope.bias.data = bias
    for weight in (torch.randn(3, 3), slope.slope.data.diag()):
        for one in (first, last):
            one.weight.data, one.bias.data = weight, bias
        torch.testing.assert_close(first(x), last(x.movedim(1, -1)).movedim(-1, 1))
    torch.testing.assert_close(slope(x), first(x))


def test_stand_ins_that_cannot_be_are_refused() -> None:
    message = "Expected what is fitted to have some channels along dimension 1 or -1, but got 0"
    with pytest.raises(ValueError, match=message):
        StandIn(leaves="affine", dim=1)
    with pytest.raises(ValueError, match="but got 4 along dimension 1 for 'identity'"):
        StandIn(dim=1, channels=4)
    with pytest.raises(ValueError, match="Expected tensors of one fitted stand-in at most, but got 1 for 0"):
        Bypass(unit="a", kind="block", modules={"a": StandIn()}, tensors=("e0.weight",))
    constant = StandIn(leaves="constant", dim=-1, channels=3)
    edit = Bypass(unit="0", kind="mlp", modules={"0": constant}, tensors=("e0.bias",))
    message = "Expected modules with parameters where .* takes their place, but ReLU has none"
    with pytest.raises(ValueError, match=message):
        apply_edits(nn.Sequential(nn.ReLU()), [edit], {"e0.bias": torch.ones(3)})
