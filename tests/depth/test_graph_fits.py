"""Blocks, branches, layers and activations that only the graph knows leave something fitted, where this is nearer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from prunerecover import Budget, Plan, apply_plan, load_pruned, merge, plan_depth, save_pruned, update_optimizer
from prunerecover.apply import refit_plan
from prunerecover.cost.macs import count_macs
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.model.replacements import Affine, Constant, SlopeBias
from prunerecover.plan.edit_parts import StandIn
from prunerecover.plan.edits import Bypass
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits


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


class Branch(Mixing):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu())  # type: ignore[no-any-return]


class Pair(nn.Module):
    """A block of two residual branches, each a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Branch(), Branch()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.one(x)
        return x + self.other(x)  # type: ignore[no-any-return]


def four_of(block: Callable[[], nn.Module], images: bool = True) -> nn.Sequential:
    stem: nn.Module = nn.Conv2d(3, 6, 3) if images else nn.Linear(3, 6)
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if images else []
    return nn.Sequential(stem, nn.Sequential(*(block() for _ in range(4))), *pooled, nn.Linear(6, 5))


def pointwise() -> nn.Sequential:
    """Convolutions of one position each, with a norm and an activation behind the first that sees positive numbers."""
    served = [nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()]
    net = nn.Sequential(nn.Conv2d(3, 6, 1), *served, Mixing(inner=6, kernel=3), nn.Conv2d(6, 5, 1))
    corners = torch.ones(3, 3, dtype=torch.bool)
    corners[1, 1] = False
    for layer in (net[1], net[4].a, net[4].b):
        layer.weight.data[:, :, corners] = 0  # type: ignore[union-attr]
    net[2].bias.data.fill_(50.0)  # type: ignore[union-attr]
    return net


def sloped() -> nn.Sequential:
    """An activation that sees negative numbers alone, where it is a slope."""
    hidden = [nn.Linear(8, 24), nn.LeakyReLU(0.3), nn.Linear(24, 8), nn.ReLU()]
    net = nn.Sequential(nn.Linear(3, 8), *hidden, nn.Linear(8, 5))
    net[1].bias.data.fill_(-50.0)  # type: ignore[union-attr]
    return net


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


IMAGES = (3, 5, 5)
four_bent = partial(four_of, Bent)
linear_rows = partial(four_of, partial(Mixing, images=False), images=False)
CASES = {  # what is removed, the shape of a sample, what is left, and the part of the error that stays at most
    "linear blocks of images": (partial(four_of, Mixing), {"block": 3}, IMAGES, {"affine"}, 0.001),
    "linear blocks of rows": (linear_rows, {"block": 3}, (7, 3), {"affine", "identity"}, 0.001),
    "a layer, its norm and its activation": (pointwise, {"layer": 1}, IMAGES, {"affine"}, 0.001),
    "all layers": (pointwise, {"layer": 3}, IMAGES, {"affine"}, 0.001),
    "an activation": (sloped, {"activation": 1}, (3,), {"slope_bias"}, 0.001),
    "blocks": (four_bent, {"block": 2}, IMAGES, {"affine"}, 0.5),
    "branches": (partial(four_of, Pair), {"mlp": 2}, IMAGES, {"affine"}, 0.5),
}


class Case(NamedTuple):
    name: str
    dense: nn.Module
    batches: list[Tensor]
    plan: Plan


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    make, remove, shape, _, _ = CASES[request.param]
    dense, batches = seeded(make), batches_of(*shape)
    return Case(request.param, dense, batches, plan_depth(dense, remove=remove, batches=batches, ignore=ignored(dense)))


def ignored(dense: nn.Module) -> list[str]:
    return [] if isinstance(dense[1], nn.Sequential) else ["0"]  # type: ignore[index]


def test_what_is_left_is_nearer_than_nothing(case: Case) -> None:
    _, remove, _, left, most = CASES[case.name]
    dense, x = case.dense, torch.cat(case.batches) * 1.5
    bare = plan_depth(dense, remove=remove, batches=case.batches, ignore=ignored(dense), replace="identity")
    assert not bare.tensors
    assert case.plan.tensors
    assert leaves(case.plan) == left
    assert apart(dense, case.plan, x) < most * apart(dense, bare, x)


def test_what_is_saved_opens_with_the_same_bits(case: Case, tmp_path: Path) -> None:
    x, wanted = case.batches[0], pruned(case.dense, case.plan)
    case.plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == case.plan
    assert torch.equal(pruned(case.dense, again)(x), wanted(x))
    save_pruned(wanted, case.plan, tmp_path / "pruned")
    assert torch.equal(load_pruned(tmp_path / "pruned", copy.deepcopy(case.dense))(x), wanted(x))
    merged = copy.deepcopy(wanted)
    merge(merged)
    torch.testing.assert_close(merged(x), wanted(x))


def test_what_is_left_is_refitted_to_other_weights(case: Case) -> None:
    other = copy.deepcopy(case.dense)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-1.2)  # activations see numbers of the other sign
    again = refit_plan(other, case.plan, case.batches)
    stale = again.with_tensors(case.plan.tensors)
    assert apart(other, again, case.batches[0]) < 0.2 * apart(other, stale, case.batches[0])


def test_maps_train_in_the_group_of_the_block() -> None:
    dense = seeded(four_bent)
    plan = plan_depth(dense, remove={"block": 2}, batches=batches_of(*IMAGES))
    groups = [{"params": dense[1].parameters(), "lr": 0.1}, {"params": dense[3].parameters()}]  # type: ignore[index]
    optimizer = torch.optim.SGD(groups, 0.2)
    update_optimizer(optimizer, apply_plan(dense, plan))
    maps = [module for module in dense.modules() if isinstance(module, Affine)]
    held = set(optimizer.param_groups[0]["params"])
    assert len(maps) == 2
    assert all(parameter in held for one in maps for parameter in one.parameters())
    before = maps[0].weight.detach().clone()
    dense(batches_of(*IMAGES)[0]).square().mean().backward()
    optimizer.step()
    assert not torch.equal(maps[0].weight, before)


@pytest.mark.parametrize(("make", "kind"), [(four_bent, "block"), (pointwise, "layer")])
def test_a_share_counts_what_is_left(make: Callable[[], nn.Module], kind: str) -> None:
    dense = seeded(make)
    plan = plan_depth(dense, Budget(macs=0.25), batches=batches_of(*IMAGES), kinds=kind)
    assert "affine" in leaves(plan)
    live, whole = (count_macs(one, torch.zeros(1, *IMAGES)) for one in (pruned(dense, plan), dense))
    assert plan.evidence["removed_share"]["macs"]["live"] == pytest.approx(1 - live / whole)


def test_what_is_fitted_is_tuned_on_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    dense, x = seeded(four_bent), torch.randn(64, *IMAGES, generator=torch.Generator().manual_seed(2))
    for parameter in dense.parameters():
        parameter.data *= 3  # what blocks add is far from linear
    tuned = plan_depth(dense, remove={"block": 2}, batches=batches_of(*IMAGES))
    monkeypatch.setattr("prunerecover.calibration.learning.RATES", ())
    solved = plan_depth(dense, remove={"block": 2}, batches=batches_of(*IMAGES))
    assert tuned.edits == solved.edits

    def kl(plan: Plan) -> float:
        log_p, log_q = (one(x).detach().log_softmax(-1) for one in (dense, pruned(dense, plan)))
        return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())

    assert kl(tuned) < 0.8 * kl(solved)


def test_an_earlier_budget_changes_no_later_plan() -> None:
    dense, config, budget = seeded(four_bent), DepthConfig(search="greedy"), Budget(remove={"block": 2})
    planner, other = (DepthSearch(Session(dense, batches_of(*IMAGES)), ("block",), config) for _ in range(2))
    planner.plan(Budget(remove={"block": 3}))
    later, alone = planner.plan(budget), other.plan(budget)
    assert later == alone
    assert all(torch.equal(later.tensors[key], value) for key, value in alone.tensors.items())


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
