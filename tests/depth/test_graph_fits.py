"""Blocks, branches, layers and activations that only the graph knows leave something fitted, where this is nearer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from cases.depth.fitted import Bent, Mixing, apart, batches_of, leaves, pruned, seeded
from torch import Tensor, nn

from prunerecover import Budget, Plan, apply_plan, load_pruned, merge, plan_depth, save_pruned, update_optimizer
from prunerecover.apply import refit_plan
from prunerecover.cost.macs import count_macs
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.model.replacements import Affine
from prunerecover.session.session import Session


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


IMAGES = (3, 5, 5)
four_bent = partial(four_of, Bent)
linear_rows = partial(four_of, partial(Mixing, images=False), images=False)
CASES = {  # what is removed, the shape of a sample, what is left, and the part of the error that stays at most
    "linear blocks of images": (partial(four_of, Mixing), {"block": 3}, IMAGES, {"affine"}, 0.001),
    "linear blocks of rows": (linear_rows, {"block": 3}, (7, 3), {"affine"}, 0.001),
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
