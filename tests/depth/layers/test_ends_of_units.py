"""Tensors at the ends of a removed unit stay as they are: no code writes into them, and both have one width."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cases.depth.removal import learns, pruned, removals_of
from cases.sampling import one_in
from torch import Tensor, nn

from prunerecover import Plan, apply_plan, plan_depth

WIDTH = 8
IMAGES = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)) - 0.5


class SharedReLU(nn.Module):
    """A residual network whose in-place ReLU is called twice: in the branch, which goes, and behind the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.conv1 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(WIDTH)
        self.conv2 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Conv2d(2 * WIDTH, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        branch = self.conv2(self.relu(self.norm1(self.conv1(x))))
        both = x + branch
        return self.head(torch.cat([both, self.relu(both * 2)], 1))


class Depthwise(nn.Module):
    """A depthwise convolution comes first, and gates of another width behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)
        self.act = nn.ReLU()
        self.reduce = nn.Conv2d(WIDTH, WIDTH // 2, 1)
        self.expand = nn.Conv2d(WIDTH // 2, WIDTH, 1)
        self.pointwise = nn.Conv2d(WIDTH, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.depthwise(x))
        x = x * torch.sigmoid(self.expand(torch.relu(self.reduce(x.mean((2, 3), keepdim=True)))))
        return torch.relu(self.pointwise(x))


class SecondArgument(nn.Module):
    """A module whose layer reads what it is given second."""

    class End(nn.Module):
        """The module."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, beside: Tensor, x: Tensor) -> Tensor:
            return self.layer(x)  # type: ignore[no-any-return]

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner, self.end = nn.Linear(3, WIDTH), nn.Linear(WIDTH, WIDTH), self.End()
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.end(x, self.inner(x).tanh()))  # type: ignore[no-any-return]


def test_module_in_which_nothing_is_left_hands_on_what_it_read() -> None:
    torch.manual_seed(0)
    x, model = torch.rand(2, 3), SecondArgument()
    removals = removals_of(model, x)
    left = pruned(removals, [unit for unit in removals.units if unit.name == "end.layer"])
    torch.testing.assert_close(left(x), model.head(model.inner(model.stem(x)).tanh()))


def test_code_that_stays_does_not_write_into_what_a_branch_reads() -> None:
    torch.manual_seed(0)
    model = SharedReLU().eval()
    removals = removals_of(model, IMAGES)
    [branch] = [unit for unit in removals.units if unit.kind == "mlp"]
    left = pruned(removals, [branch])
    learns(left, removals.example)
    with torch.no_grad():
        stream = model.stem(IMAGES)
        assert (stream < 0).any()
        torch.testing.assert_close(left(IMAGES), model.head(torch.cat([stream, torch.relu(stream * 2)], 1)))


@pytest.mark.slow
@pytest.mark.parametrize(("block", "layer"), one_in(3, [("1", "2.reduce"), ("1", "3.expand"), ("2", "3.reduce")]))
def test_a_block_goes_with_a_layer_that_narrows_what_depthwise_convolutions_read(block: str, layer: str) -> None:
    torch.manual_seed(0)
    blocks = (Depthwise() for _ in range(3))
    model = nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1), *blocks, nn.Conv2d(WIDTH, 2, 1)).eval()
    removals = removals_of(model, IMAGES)
    units = {unit.name: unit for unit in removals.units}
    left = pruned(removals, [units[block], units[layer]])
    learns(left, removals.example)
    assert left(IMAGES).shape == model(IMAGES).shape


class Sized(nn.Module):
    """A branch that returns, behind its tensor, the size of the image, which the next branch needs or does not."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.conv, self.reads = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), reads

    def forward(self, x: Tensor, size: list[int]) -> tuple[Tensor, list[int]]:
        height, width = size if self.reads else x.shape[2:]
        return torch.tanh(self.conv(x)).reshape(len(x), WIDTH, height, width), [height, width]


class Sizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.first, self.second, self.third = Sized(True), Sized(True), Sized(False)
        self.head = nn.Conv2d(WIDTH, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, size = self.stem(x), [*x.shape[2:]]
        for module in (self.first, self.second, self.third):
            branch, size = module(x, size)
            x = x + branch
        return self.head(x)


def test_a_branch_is_no_unit_if_the_next_one_needs_its_size() -> None:
    removals = removals_of(Sizes().eval(), IMAGES, ("mlp",))
    assert [unit.name for unit in removals.units] == ["second.conv", "third.conv"]
    assert "the network does not run without it (TypeError" in removals.refused["first.conv"]


class InTuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (x + self.second(torch.relu(self.first(x))),)


class InTuples(nn.Module):
    """Blocks that return their tensor in a tuple of its own, as older code of transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(InTuple() for _ in range(3))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)[0]
        return self.head(x)


def test_blocks_that_return_a_tuple_of_one_tensor_go(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, batch = InTuples().eval(), torch.rand(4, 5, WIDTH)
    plan = plan_depth(model, remove={"block": 1}, batches=[batch], importance="random")
    plan.save(tmp_path / "plan.json")
    [number] = [int(path.rpartition(".")[2]) for path in plan.removed["block"]]
    kept = [block for place, block in enumerate(model.blocks) if place != number]
    expected = batch
    for block in kept:
        expected = block(expected)[0]
    apply_plan(model, Plan.load(tmp_path / "plan.json"))
    assert torch.equal(model(batch), model.head(expected))


class OfList(nn.Module):
    """Reads all that came before, in a list, and makes as many channels as the first of them has."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before * WIDTH, WIDTH, 1)
        self.second = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, found: list[Tensor]) -> Tensor:
        return self.second(torch.relu(self.first(torch.cat(found, 1))))


class OfLists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 1)
        self.stage = nn.ModuleList([OfList(1), OfList(2), OfList(3)])
        self.head = nn.Conv2d(4 * WIDTH, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = [self.stem(x)]
        for block in self.stage:
            found.append(block(found))
        return self.head(torch.cat(found, 1))


def test_modules_that_read_a_list_are_no_blocks() -> None:
    removals = removals_of(OfLists().eval(), IMAGES)
    assert {unit.kind for unit in removals.units} == {"layer"}
    assert "the network does not run without it (TypeError" in removals.refused["stage.0"]


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_block_that_other_code_reads_parts_of_stays_when_nothing_is_left_in_it(norm_first: bool) -> None:
    """`nn.TransformerEncoder` asks its first block for its attention's settings before it runs."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, norm_first=norm_first)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(WIDTH, 2)).eval()
    batch = torch.rand(3, 5, WIDTH)
    removals = removals_of(model, batch)
    assert "reads parts of '0.layers.0'" in removals.refused["0.layers.0"]
    parts = ("0.layers.0.self_attn", "0.layers.0.linear1+linear2")
    left = pruned(removals, [unit for unit in removals.units if unit.name in parts])
    learns(left, removals.example)
    first, second = model[0].layers
    stream = batch if norm_first else first.norm2(first.norm1(batch))
    torch.testing.assert_close(left(batch), model[1](second(stream)))
