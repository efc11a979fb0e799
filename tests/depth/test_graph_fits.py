"""Blocks and branches that only the graph knows leave something fitted, where this changes the output less."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from prunerecover import (
    Budget,
    Plan,
    apply_plan,
    load_pruned,
    merge,
    plan_depth,
    save_pruned,
    update_optimizer,
)
from prunerecover.apply import refit_plan
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.model.replacements import Affine
from prunerecover.plan.edit_parts import StandIn
from prunerecover.plan.edits import Bypass
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits


class Mixing(nn.Module):
    """A residual block without anything nonlinear: an affine map is all of it."""

    def __init__(self, channels: int, images: bool) -> None:
        super().__init__()
        inner = 2 * channels
        self.a = nn.Conv2d(channels, inner, 1) if images else nn.Linear(channels, inner)
        self.b = nn.Conv2d(inner, channels, 1) if images else nn.Linear(inner, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(self.a(x))  # type: ignore[no-any-return]


class Bent(Mixing):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(self.a(x).relu())  # type: ignore[no-any-return]


class Pair(nn.Module):
    """A block of two residual branches, each a module of its own."""

    def __init__(self, channels: int, images: bool) -> None:
        super().__init__()
        self.one, self.other = Branch(channels, images), Branch(channels, images)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.one(x)
        return x + self.other(x)  # type: ignore[no-any-return]


class Branch(Mixing):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu())  # type: ignore[no-any-return]


def network(block: type[nn.Module], images: bool = True, blocks: int = 4) -> nn.Module:
    torch.manual_seed(0)
    stem: nn.Module = nn.Conv2d(3, 6, 3) if images else nn.Linear(3, 6)
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if images else []
    return nn.Sequential(
        stem, nn.Sequential(*(block(6, images) for _ in range(blocks))), *pooled, nn.Linear(6, 5)
    ).eval()


def samples(images: bool = True) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn((16, 3, 9, 9) if images else (16, 7, 3), generator=generator) for _ in range(4)]


def kl(dense: Tensor, other: Tensor) -> float:
    log_p, log_q = dense.detach().log_softmax(-1), other.detach().log_softmax(-1)
    return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())


def pruned(dense: nn.Module, plan: Plan) -> nn.Module:
    copied = copy.deepcopy(dense)
    apply_plan(copied, plan)
    return copied


@pytest.mark.parametrize("images", [True, False])
def test_linear_blocks_are_what_they_were(images: bool) -> None:
    """Convolutions leave maps; a block between linear layers leaves nothing, and the layer before takes over."""
    dense, batches = network(Mixing, images), samples(images)
    plan = plan_depth(dense, remove={"block": 3}, batches=batches)
    leaves = [edit.leaves for edit in plan.edits if isinstance(edit, Bypass)]
    assert leaves == ["affine"] * 3 or not images
    x = samples(images)[0] * 2
    kept = (pruned(dense, plan)(x) - dense(x)).abs().max() / dense(x).abs().max()
    bare = pruned(dense, plan_depth(dense, remove={"block": 3}, batches=batches, replace="identity"))
    assert kept < 0.05 < (bare(x) - dense(x)).abs().max() / dense(x).abs().max()


@pytest.fixture(scope="module", params=["block", "mlp"])
def bent(request: pytest.FixtureRequest) -> tuple[nn.Module, Plan]:
    dense = network(Bent if request.param == "block" else Pair)
    return dense, plan_depth(dense, remove={request.param: 2}, batches=samples())


def test_a_map_is_left_where_it_is_nearer_than_nothing(bent: tuple[nn.Module, Plan]) -> None:
    dense, plan = bent
    bare = plan_depth(dense, remove={plan.edits[0].kind: 2}, batches=samples(), replace="identity")  # type: ignore[union-attr]
    assert not bare.tensors
    assert plan.tensors
    x = torch.cat(samples())

    assert kl(dense(x), pruned(dense, plan)(x)) < 0.5 * kl(dense(x), pruned(dense, bare)(x))


def test_what_is_saved_opens_with_the_same_bits(bent: tuple[nn.Module, Plan], tmp_path: Path) -> None:
    dense, plan = bent
    x, wanted = samples()[0], pruned(dense, plan)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert torch.equal(pruned(dense, again)(x), wanted(x))
    save_pruned(wanted, plan, tmp_path / "pruned")
    assert torch.equal(load_pruned(tmp_path / "pruned", copy.deepcopy(dense))(x), wanted(x))
    merged = copy.deepcopy(wanted)
    merge(merged)
    torch.testing.assert_close(merged(x), wanted(x))


def test_maps_are_refitted_to_other_weights(bent: tuple[nn.Module, Plan]) -> None:
    dense, plan = bent
    other = copy.deepcopy(dense)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.3)
    again = refit_plan(other, plan, samples())
    x = samples()[0]
    stale, fresh = (
        (pruned(other, one)(x) - other(x)).square().mean() for one in (again.with_tensors(plan.tensors), again)
    )
    assert fresh < 0.95 * stale


def test_maps_train_in_the_group_of_the_block(bent: tuple[nn.Module, Plan]) -> None:
    dense, plan = bent
    copied = copy.deepcopy(dense)
    optimizer = torch.optim.SGD(
        [{"params": copied[1].parameters(), "lr": 0.1}, {"params": copied[3].parameters()}], 0.2
    )
    update_optimizer(optimizer, apply_plan(copied, plan))
    maps = [module for module in copied.modules() if isinstance(module, Affine)]
    held = {parameter for parameter in optimizer.param_groups[0]["params"]}
    assert len(maps) == 2
    assert all(parameter in held for one in maps for parameter in one.parameters())
    before = maps[0].weight.detach().clone()
    copied(samples()[0]).square().mean().backward()
    optimizer.step()
    assert not torch.equal(maps[0].weight, before)


def test_what_is_fitted_is_tuned_on_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    dense, x = network(Bent), torch.randn(64, 3, 9, 9, generator=torch.Generator().manual_seed(2))
    for parameter in dense.parameters():
        parameter.data *= 3  # what blocks add is far from linear
    tuned = plan_depth(dense, remove={"block": 2}, batches=samples())
    monkeypatch.setattr("prunerecover.calibration.learning.RATES", ())
    solved = plan_depth(dense, remove={"block": 2}, batches=samples())
    assert tuned.edits == solved.edits
    learnt, fitted = (kl(dense(x), pruned(dense, plan)(x)) for plan in (tuned, solved))
    assert learnt < 0.8 * fitted


def test_an_earlier_budget_changes_no_later_plan() -> None:
    dense, config = network(Bent), DepthConfig(search="greedy")
    planner = DepthSearch(Session(dense, samples()), ("block",), config)
    planner.plan(Budget(remove={"block": 3}))
    later = planner.plan(Budget(remove={"block": 2}))
    alone = DepthSearch(Session(dense, samples()), ("block",), config).plan(Budget(remove={"block": 2}))
    assert later == alone
    assert all(torch.equal(later.tensors[key], value) for key, value in alone.tensors.items())


def test_outputs_of_other_shapes_leave_identities() -> None:
    class Picking(nn.Module):
        """Returns as many rows as are above zero, as detectors do."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Sequential(*(Bent(6, True) for _ in range(3))), nn.Conv2d(6, 5, 1)
            self.stem = nn.Conv2d(3, 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            rows = self.head(self.body(self.stem(x))).movedim(1, -1).flatten(0, -2)
            return rows[rows[:, 0] > 0]  # type: ignore[no-any-return]

    torch.manual_seed(0)
    plan = plan_depth(Picking().eval(), remove={"block": 1}, batches=samples(), importance="magnitude")
    assert [edit.leaves for edit in plan.edits if isinstance(edit, Bypass)] == ["identity"]


def test_a_share_counts_what_maps_cost() -> None:
    dense = network(Bent)
    plan = plan_depth(dense, Budget(macs=0.3), batches=samples(), kinds="block")
    used = plan.evidence["removed_share"]["macs"]
    blocks = [edit for edit in plan.edits if isinstance(edit, Bypass)]
    maps = sum(edit.leaves == "affine" for edit in blocks)
    block, stem = 49 * (2 * 6 * 12), 49 * 27 * 6
    assert maps
    assert used["live"] == pytest.approx((len(blocks) * block - maps * 49 * 36) / (stem + 4 * block + 30))


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 5, 5), (4, 3, 2, 2, 2)])
def test_a_map_of_dimension_1_is_the_one_of_the_last_moved(shape: tuple[int, ...]) -> None:
    first, last = Affine(3, dim=1), Affine(3)
    weight, bias, x = torch.randn(3, 3), torch.randn(3), torch.randn(shape)
    for one in (first, last):
        one.weight.data, one.bias.data = weight.clone(), bias.clone()
    torch.testing.assert_close(first(x), last(x.movedim(1, -1)).movedim(-1, 1))


def test_maps_of_no_channels_are_refused() -> None:
    with pytest.raises(
        ValueError, match="Expected what is fitted to have some channels along dimension 1 or -1, but got 0"
    ):
        StandIn(leaves="affine", dim=1)
    with pytest.raises(ValueError, match="but got 4 along dimension 1 for 'identity'"):
        StandIn(dim=1, channels=4)


def test_tensors_of_no_map_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected tensors of one fitted stand-in at most, but got 1 for 0"):
        Bypass(unit="a", kind="block", modules={"a": StandIn()}, tensors=("e0.weight",))


def test_nothing_is_fitted_in_the_place_of_modules_without_parameters() -> None:
    constant = StandIn(leaves="constant", dim=-1, channels=3)
    edit = Bypass(unit="0", kind="mlp", modules={"0": constant}, tensors=("e0.bias",))
    with pytest.raises(
        ValueError, match="Expected modules with parameters where .* takes their place, but ReLU has none"
    ):
        apply_edits(nn.Sequential(nn.ReLU()), [edit], {"e0.bias": torch.ones(3)})
