"""Blocks with activations and sums as functions in the forward, and the same blocks without a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.model.copies import share_copy
from prunerecover.surgery.forward.calls import named_calls
from prunerecover.surgery.forward.rewritten_forward import find_rewriting, install
from prunerecover.surgery.forward.tracing import trace_forward


def without_calls(module: nn.Module, calls: Sequence[str]) -> nn.Module:
    """Return a copy with shared tensors and without some calls."""
    rewriting, new = find_rewriting(module, calls), share_copy(module)
    install(new, rewriting)
    return new


def calls_of(module: nn.Module) -> tuple[str, ...]:
    """Return the names of all calls in a module's own forward."""
    return tuple(named_calls(trace_forward(module, "this module")[0], module))


class Block(nn.Module):
    """Residual block of two convolutions, with the forward as an argument."""

    steps: Callable[[Any, Tensor], Tensor]

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace)


class Plain(Block):
    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(out)))


class ReadsBoth(Block):
    """The first activation's input is read again, after the sum was written into the activation's output."""

    def forward(self, x: Tensor) -> Tensor:
        before = self.conv1(x)
        out = torch.relu(before)
        out += x
        return self.conv2(out) * before


class ReadsBothWithout(ReadsBoth):
    def forward(self, x: Tensor) -> Tensor:
        before = self.conv1(x)
        return self.conv2(before + x) * before


class WritesAfter(Block):
    """A child writes into the removed call's input."""

    def forward(self, x: Tensor) -> Tensor:
        before = self.conv1(x)
        out = self.act(before.sigmoid().relu())
        return self.conv2(out) + before.tanh()


class WritesAfterWithout(WritesAfter):
    def forward(self, x: Tensor) -> Tensor:
        before = self.conv1(x)
        return self.conv2(F.relu(before.sigmoid())) + before.tanh()


class WritesIntoTheOlder(Block):
    """Without the first activation, the second would write into the block's own input."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(F.leaky_relu(x, 0.5))
        return self.conv1(out) + x


class WritesIntoTheOlderWithout(WritesIntoTheOlder):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv1(F.relu(x)) + x


class Statements(Block):
    """Calls with unnamed results: later code reads the tensor that they write into."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(x)
        F.hardtanh_(out, -0.5, 0.5)
        self.act(out)
        out.mul_(2.0).add_(x)
        return self.conv2(out)


class StatementsWithout(Statements):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(F.relu(self.conv1(x)) * 2.0 + x)


class SumsIntoAll(Block):
    """A sum is written into a tensor with a second name."""

    def forward(self, x: Tensor) -> Tensor:
        out = same = self.conv1(x)
        out += x
        return F.gelu(self.conv2(out)) * same


class SumsIntoAllWithout(SumsIntoAll):
    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(x) + x
        return self.conv2(out) * out


# Class, removed unit, handwritten class without the unit.
TRAPS: dict[str, tuple[type[Block], str, type[Block]]] = {
    "a sum written into what is read again": (ReadsBoth, "relu:0", ReadsBothWithout),
    "a child that writes into what gradients need": (WritesAfter, "relu:0", WritesAfterWithout),
    "a child that would write into the input": (WritesIntoTheOlder, "leaky_relu:0", WritesIntoTheOlderWithout),
    "a sum written into a tensor of two names": (SumsIntoAll, "gelu:0", SumsIntoAllWithout),
    "calls whose results have no name": (Statements, "hardtanh:0", StatementsWithout),
}


class Joined(nn.Module):
    """Sums, a product and a concatenation of branches."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.gain = nn.Parameter(torch.full((4,), 2.0))
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([self.a(x), self.b(x), self.c(x)], dim=0)
        return self.last(joined) * self.gain + 1


def grown(cls: type[nn.Module], **kwargs: Any) -> nn.Module:
    torch.manual_seed(0)
    return cls(**kwargs)
