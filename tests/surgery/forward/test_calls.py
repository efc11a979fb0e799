"""Names of calls, equal to those from a watch on dispatched operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.models.rewritten import Plain, calls_of, grown, without_calls
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu in place": lambda x: F.relu(x + 0, inplace=True),
    "relu as a method": lambda x: x.relu(),
    "gelu": F.gelu,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: F.softmax(x, 1),
    "log_softmax": lambda x: x.log_softmax(1),
    "softsign": lambda x: F.softsign(x) + x,
    "glu": lambda x: F.glu(x, 1),
    "clip": lambda x: torch.clip(x, 0, 6),
    "operator add": lambda x: x + x,
    "number first": lambda x: 1 + x,
    "add": lambda x: torch.add(x, x),
    "sum": lambda x: sum([x, x]),
    "mul": lambda x: torch.multiply(x, x) * 2,
    "division of a number": lambda x: (1 / x) * x,
    "difference from a number": lambda x: (1 - x) - x,
    "cat": lambda x: torch.cat([x, x]),
    "sizes": lambda x: x.reshape(x.shape[0] * x.shape[1] * 1) * x.numel(),
}
ARITHMETIC = {"add", "mul", "sub", "rsub", "div", "cat", "reciprocal"}


class Watch(TorchDispatchMode):
    """Counts operations of the module itself, and calls of its children."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.names: list[str] = []
        self.counts: Counter[str] = Counter()
        self.inside = 0
        self.paths = {child: path for path, child in module.named_modules() if path}
        for child in self.paths:
            child.register_forward_pre_hook(self.enter)
            child.register_forward_hook(self.leave)

    def note(self, name: str) -> None:
        self.names.append(f"{name}:{self.counts[name]}")
        self.counts[name] += 1

    def enter(self, child: nn.Module, args: Any) -> None:
        if not self.inside:
            self.note(self.paths[child])
        self.inside += 1

    def leave(self, *_: Any) -> None:
        self.inside -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.inside:
            self.note(func.overloadpacket.__name__.strip("_"))
        return func(*args, **(kwargs or {}))


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations_are_named_as_a_watch_on_the_run_names_them(name: str) -> None:
    module = Calls(FUNCTIONS[name])
    found, x = calls_of(module), torch.rand(2, 4) + 1
    with Watch(module) as watch:
        module(x)
    here = {call.partition(":")[0] for call in found} | ARITHMETIC
    seen = [call for call in watch.names if call.partition(":")[0] in here]
    assert set(found) - {"reshape:0"} <= set(seen)
    assert all(call in found for call in seen) or name in ("softsign", "division of a number")


class Both(nn.Module):
    """Child with the name of an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.LeakyReLU(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) + self.relu(x) * 10


def test_a_child_has_its_name_before_an_operation() -> None:
    x = torch.tensor([-1.0])
    assert calls_of(Both()) == ("aten.relu:0", "relu:0", "mul:0", "add:0")
    assert without_calls(Both(), ["relu:0"])(x) == -10
    assert without_calls(Both(), ["aten.relu:0"])(x) == -6
    assert without_calls(grown(Plain).eval(), ["aten.relu:0"]).rerouted == ("aten.relu:0",)
