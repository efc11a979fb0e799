"""Passes from front to back equal whole passes, and compute complete parts once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.calibration import front_to_back
from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.hooks import removed_after


class Counted(nn.Linear):
    """Linear layer with a counter of calls."""

    calls: Counter[int] = Counter()

    def forward(self, x: Tensor) -> Tensor:
        """Return the product."""
        self.calls[id(self)] += 1
        return super().forward(x)


class Net(nn.Module):
    """Sequential parts: called twice, overwritten, or with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(Counted(4, 4), nn.ReLU(inplace=True), Counted(4, 4))
        self.twice, self.written, self.last = Counted(4, 4), Counted(4, 4), Counted(4, 2)
        self.pair = Pair()

    def forward(self, x: Tensor) -> Tensor:
        """Return `(N, 2)`."""
        x = self.twice(self.twice(self.first(x)))
        y = self.written(x)
        y += 1
        left, right = self.pair(y)
        return self.last(F.relu(left + right + x))


class Pair(nn.Module):
    """Layer with two output tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Counted(4, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return two tensors `(N, 4)`."""
        return self.layer(x).chunk(2, -1)


LAYERS = ("first.0", "first.2", "twice", "written", "pair.layer", "last")
BATCHES = [ModelInputs((torch.randn(n, 4),)) for n in (3, 2)]


def seen_from_the_front(network: nn.Module, path: str, inputs: ModelInputs) -> tuple[Tensor, Tensor]:
    """Return the input and output of a module at the first call in a whole pass."""
    seen: list[tuple[Tensor, Tensor]] = []

    def note(_: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        seen.append((args[0].clone(), output.clone()))

    with removed_after(network.get_submodule(path).register_forward_hook(note)):
        call(network, inputs)
    return seen[0]


@pytest.mark.parametrize("room", [1 << 30, 100, 0])
def test_passes_equal_whole_ones_while_layers_change(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_to_back, "MOST_KEPT", room)
    network = Net().eval()
    with torch.no_grad():
        passes = FrontToBack(network, BATCHES)
        for path in LAYERS:
            for _ in range(2):
                for inputs in BATCHES:
                    (found,) = passes.seen_at(path, inputs)
                    assert all(map(torch.equal, found, seen_from_the_front(network, path, inputs)))
            network.get_submodule(path).weight.add_(torch.randn(()))
        assert all("forward" not in vars(module) for module in network.modules())


def test_what_is_complete_is_computed_once() -> None:
    network = Net().eval()
    with torch.no_grad():
        passes = FrontToBack(network, BATCHES[:1])
        Counted.calls.clear()
        for _ in range(5):
            passes.seen_at("last", BATCHES[0])
    calls = {path: Counted.calls[id(network.get_submodule(path))] for path in LAYERS}
    assert calls == {"first.0": 1, "first.2": 1, "twice": 10, "written": 5, "pair.layer": 1, "last": 5}


class Renaming(nn.Module):
    """Network that sets an entry of the output of a part, as Qwen2.5-VL does with features of images."""

    def __init__(self) -> None:
        super().__init__()
        self.named, self.last = Named(), Counted(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return `(N, 2)`."""
        found = self.named(x)
        found["rows"] = torch.split(found["rows"], 1)  # fails for an output that is split already
        return self.last(torch.cat(found["rows"]))


class Named(Counted):
    """Linear layer with the product in a mapping."""

    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor) -> Any:
        """Return the product by name."""
        return {"rows": super().forward(x)}


@torch.no_grad()
def test_entries_set_by_later_code_are_not_kept() -> None:
    network, batch = Renaming().eval(), ModelInputs((torch.randn(3, 4),))
    passes = FrontToBack(network, [batch])
    Counted.calls.clear()
    (first,), (again,) = (passes.seen_at("last", batch) for _ in range(2))
    assert Counted.calls[id(network.named)] == 1
    assert torch.equal(first[1], again[1])
    assert torch.equal(again[1], call(network, batch))
