"""Tensors that code splits by their size: all parts lose the same number of units, or the split would move."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from cases.models.cut_in_parts import C2f, Cut, Halves, c2f_network
from cases.models.width import images, stirred
from cases.width.groups import assert_equal, outputs
from cases.width.oracle import Keep, masked, narrowed
from torch import Tensor, nn

from prunerecover import Budget, plan_width
from prunerecover.plan.edits import Narrow
from prunerecover.width.groups.discovery import find_groups
from prunerecover.width.groups.found import FoundGroups


def random_units(size: int, strata: int, lost: int, seed: int) -> Tensor:
    """Keep all but `lost` units of each stratum, at random."""
    generator = torch.Generator().manual_seed(seed)
    length = size // strata
    kept = [start + torch.randperm(length, generator=generator)[lost:] for start in range(0, size, length)]
    return torch.cat(kept).sort().values


def assert_narrowed_is_masked(net: nn.Module, found: FoundGroups, keep: Keep) -> None:
    with torch.no_grad():
        assert_equal(outputs(narrowed(net, found, keep), images(4)), outputs(masked(net, found, keep), images(4)))


@pytest.mark.parametrize("parts", [2, 4])
def test_units_of_one_group_are_cut_in_strata(parts: int) -> None:
    net = stirred(Halves(lambda x: x.chunk(parts, 1)))
    found = find_groups(net, images(4))
    assert [(g.name, g.strata, g.multiple) for g in found.groups] == [("first", parts, parts), ("second", 1, 1)]
    first = found.groups[0]
    for seed in range(3):
        assert_narrowed_is_masked(net, found, {first: random_units(16, parts, 1 + seed, seed)})


@pytest.mark.parametrize("how", [{}, {"allocation": "uniform"}, {"equal_layers": True}])
def test_width_plans_keep_as_many_of_each_stratum(how: dict[str, Any]) -> None:
    net = Halves(lambda x: x.chunk(2, 1))
    plan = plan_width(net, Budget(macs=0.4), batches=[(images(4).float(), torch.arange(2))], **how)
    kept = next(e.keep for e in plan.edits if isinstance(e, Narrow) and e.unit == "first")
    assert len(kept) < 16
    assert sum(unit < 8 for unit in kept) == sum(unit >= 8 for unit in kept)


CUTS: dict[str, Cut] = {
    "by a size written out": lambda x: x.split(8, 1),
    "by sizes of another share": lambda x: x.split([x.shape[1] // 4, x.shape[1] - x.shape[1] // 4], 1),
    "unevenly": lambda x: x.chunk(3, 1),
}


@pytest.mark.parametrize("how", CUTS)
def test_units_that_would_get_into_another_part_stay(how: str) -> None:
    found = find_groups(Halves(CUTS[how]), images(4).float())
    assert [g.name for g in found.groups] == ["second"]
    assert not found.linked


def test_parts_that_leave_as_a_whole_are_free() -> None:
    """Separately split heads: their number falls, and each stays the same."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.cat([head * head.flip(1) for head in self.first(x).split(2, 1)], 1))

    found = find_groups(Heads(), torch.randn(4, 3))
    assert [(g.name, g.size, g.strata) for g in found.groups] == [("first", 4, 1)]


def test_groups_in_parts_of_one_tensor_are_linked_and_as_many_are_masked() -> None:
    net = stirred(c2f_network())
    found = find_groups(net, images(4))
    names = [[group.name for group in together] for together in found.linked]
    assert names == [["1.cv1.conv", "1.cv1.conv:8"], ["2.cv1.conv", "2.cv1.conv:7"]]
    assert not {group for together in found.linked for group in together} & set(found.groups)
    for seed in range(2):
        keep = {
            group: random_units(group.size, 1, 1 + (seed + i) % 4, seed + 9 * j)
            for i, together in enumerate(found.linked)
            for j, group in enumerate(together)
        }
        assert_narrowed_is_masked(net, found, keep)


def test_the_length_of_parts_that_an_exporter_reads_follows() -> None:
    net, x = stirred(c2f_network()), images(4)
    found = find_groups(net, x)
    small = narrowed(net, found, {group: random_units(8, 1, 3, seed) for seed, group in enumerate(found.linked[0])})
    split = copy.deepcopy(small)
    split[1].forward = split[1].forward_split
    assert [net[1].c, small[1].c, small[2].c] == [8, 5, 7]
    with torch.no_grad():
        assert torch.equal(split(x), small(x))


def test_linked_groups_go_by_kind_and_name() -> None:
    net, x = c2f_network(), images(4).float()
    assert len(find_groups(net, x, ignore="1.cv1.*").linked) == 1
    assert len(find_groups(net, x, "channel").linked) == 2


def test_linked_groups_that_code_fixes_stay() -> None:
    class Fixed(C2f):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.cv1(x).view(-1, 2, 8, 4, 4).sum((1, 2))[:, None]

    free, fixed = C2f(6, 6, 8, shortcut=True), Fixed(6, 6, 8, shortcut=True)
    net = nn.Sequential(nn.Conv2d(3, 6, 1), fixed, free, nn.Conv2d(6, 2, 1))
    names = [together[0].name for together in find_groups(net, images(4).float()).linked]
    assert names == ["2.cv1.conv"]


class OnlyParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(4, 12), nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.first(x).chunk(2, 1)
        return self.left(left) + self.right(right)


def test_networks_with_linked_groups_alone_have_no_plan_of_width() -> None:
    x = torch.randn(2, 4)
    found = find_groups(OnlyParts(), x)
    assert found.groups == ()
    assert [len(together) for together in found.linked] == [2]
    with pytest.raises(ValueError, match="OnlyParts to have groups that can lose any number of units, but all"):
        plan_width(OnlyParts(), Budget(macs=0.3), batches=[(x, torch.zeros(2).long())])
    two = find_groups(nn.Sequential(OnlyParts(), OnlyParts()), x)
    assert [group.name for group in two.groups] == ["0.left"]
    assert [len(together) for together in two.linked] == [2, 2]
