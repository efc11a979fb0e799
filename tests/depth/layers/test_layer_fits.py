"""Layers and activations that only the graph knows leave something fitted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from prunerecover import Budget, Plan, apply_plan, load_pruned, plan_depth, save_pruned
from prunerecover.apply import refit_plan
from prunerecover.model.replacements import Affine, SlopeBias
from prunerecover.plan.edits import Bypass


class Residual(nn.Module):
    """Two convolutions beside a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(self.one(x))  # type: ignore[no-any-return]


def images() -> nn.Sequential:
    """Convolutions of one position each, with a norm and an activation behind the first that sees positive numbers."""
    served = [nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()]
    net = nn.Sequential(nn.Conv2d(3, 6, 1), *served, Residual(), nn.Conv2d(6, 5, 1))
    for layer in (net[1], net[4].one, net[4].two):
        corners = torch.ones(3, 3, dtype=torch.bool)
        corners[1, 1] = False
        layer.weight.data[:, :, corners] = 0  # type: ignore[union-attr]
    net[2].bias.data.fill_(50.0)  # type: ignore[union-attr]
    return net


def rows() -> nn.Sequential:
    """An activation that sees negative numbers alone, where it is a slope."""
    net = nn.Sequential(
        nn.Linear(3, 8), nn.Linear(8, 24), nn.LeakyReLU(0.3), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 5)
    )
    net[1].bias.data.fill_(-50.0)  # type: ignore[union-attr]
    return net


CASES: dict[str, tuple[Callable[[], nn.Sequential], dict[str, int], tuple[int, ...], str]] = {
    "a layer, its norm and its activation": (images, {"layer": 1}, (3, 5, 5), "affine"),
    "all layers": (images, {"layer": 3}, (3, 5, 5), "affine"),
    "an activation": (rows, {"activation": 1}, (3,), "slope_bias"),
}
Case = tuple[nn.Module, list[Tensor], Plan, str]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    make, remove, shape, leaves = CASES[request.param]
    torch.manual_seed(0)
    dense = make().eval()
    batches = [torch.randn(16, *shape) for _ in range(4)]
    return dense, batches, plan_depth(dense, remove=remove, batches=batches, ignore=["0"]), leaves


def pruned(dense: nn.Module, plan: Plan) -> nn.Module:
    copied = copy.deepcopy(dense)
    apply_plan(copied, plan)
    return copied


def test_what_is_linear_is_what_it_was(case: Case) -> None:
    dense, batches, plan, leaves = case
    assert {edit.leaves for edit in plan.edits if isinstance(edit, Bypass)} == {leaves}
    x, wanted = batches[0] * 1.5, dense(batches[0] * 1.5)
    apart = (pruned(dense, plan)(x) - wanted).abs().max() / (wanted - wanted.mean(0)).abs().max()
    assert apart < 0.1


def test_what_is_saved_opens_with_the_same_bits(case: Case, tmp_path: Path) -> None:
    dense, batches, plan, _ = case
    left = pruned(dense, plan)
    plan.save(tmp_path / "plan.json")
    assert torch.equal(pruned(dense, Plan.load(tmp_path / "plan.json"))(batches[0]), left(batches[0]))
    save_pruned(left, plan, tmp_path / "pruned")
    assert torch.equal(load_pruned(tmp_path / "pruned", copy.deepcopy(dense))(batches[0]), left(batches[0]))


def test_fits_are_made_anew_for_other_weights(case: Case) -> None:
    dense, batches, plan, _ = case
    other = copy.deepcopy(dense)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-1.2)  # the activation sees numbers of the other sign
    again = refit_plan(other, plan, batches)
    stale, fresh = (
        (pruned(other, one)(batches[0]) - other(batches[0])).square().mean()
        for one in (again.with_tensors(plan.tensors), again)
    )
    assert fresh < 0.5 * stale


def test_widths_that_follow_a_layer_leave_identities() -> None:
    """A layer of another width is narrowed first, and what was fitted for all channels would not fit."""
    torch.manual_seed(0)
    wide = [nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 12), nn.ReLU()]
    dense = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), *wide, nn.Linear(12, 5)).eval()
    batches = [torch.randn(16, 3) for _ in range(4)]
    plan = plan_depth(dense, remove={"layer": 3}, batches=batches, ignore=["0"])
    assert any(edit.op == "narrow" for edit in plan.edits)
    assert not plan.tensors
    assert pruned(dense, plan)(batches[0]).shape == (16, 5)


def test_a_share_counts_what_layers_leave() -> None:
    torch.manual_seed(0)
    dense, batches = images().eval(), [torch.randn(16, 3, 5, 5) for _ in range(4)]
    plan = plan_depth(dense, Budget(macs=0.25), batches=batches, kinds=["layer"])
    maps = sum(edit.leaves == "affine" for edit in plan.edits if isinstance(edit, Bypass))
    assert maps
    assert plan.evidence["removed_share"]["macs"]["live"] == pytest.approx(maps * 8 * 36 / (18 + 3 * 9 * 36 + 30))


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 5, 5)])
def test_a_slope_of_dimension_1_is_a_diagonal_map(shape: tuple[int, ...]) -> None:
    scaled, mapped, x = SlopeBias(3, dim=1), Affine(3, dim=1), torch.randn(shape)
    scaled.slope.data, scaled.bias.data = torch.randn(3), torch.randn(3)
    mapped.weight.data, mapped.bias.data = scaled.slope.data.diag(), scaled.bias.data
    torch.testing.assert_close(scaled(x), mapped(x))


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
    plan = plan_depth(net, remove={"layer": 1}, batches=[torch.randn(16, 4, 5, 5)])
    assert [edit.leaves for edit in plan.edits if isinstance(edit, Bypass)] == ["identity"]
    apply_plan(net, plan)
    assert net(torch.ones(1, 4, 5, 5)).shape == (1, 2, 5, 5)
