"""Forwards beyond rewriting are refused with the reason, without a change."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.engine import snapshot
from cases.models.rewritten import Joined, Plain, calls_of, grown, without_calls
from torch import Tensor, fx, nn
from torch.nn import functional as F


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.seen: list[Any] = []
        self.calls = 0
        self.register_buffer("steps", torch.zeros(()))


def decides_on_data(self: Any, x: Tensor) -> Tensor:
    return F.relu(x) if x.sum() > 0 else x


def decides_on_shape(self: Any, x: Tensor) -> Tensor:
    return F.relu(x) if x.dim() == 3 else x


def decides_on_type(self: Any, x: Any) -> Tensor:
    return F.relu(x) if isinstance(x, Tensor) else torch.cat(x)


def decides_on_argument(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return F.relu(x) if mask is None else F.relu(x) * mask


def reads_mode(self: Any, x: Tensor) -> Tensor:
    return F.dropout(F.relu(x), 0.5, self.training)


def draws(self: Any, x: Tensor) -> Tensor:
    return F.relu(x) * random.random()


def makes_tensor(self: Any, x: Tensor) -> Tensor:
    return F.relu(x) + torch.ones(4)


def counts(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return F.relu(x)


def collects(self: Any, x: Tensor) -> Tensor:
    self.seen.append(x)
    return F.relu(x)


def counts_in_buffer(self: Any, x: Tensor) -> Tensor:
    self.steps = self.steps + 1
    return F.relu(x)


def switches_gradients(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = self.linear(x)
    return F.relu(x) * scale


def switches_autocast(self: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu"):
        x = self.linear(x)
    return F.relu(x)


def any_arguments(self: Any, *args: Tensor) -> Tensor:
    return F.relu(args[0])


def writes_into_part(self: Any, x: Tensor) -> Tensor:
    y = F.relu(x)
    y[:, 0] = 0
    return y


def reads_through_view(self: Any, x: Tensor) -> Tensor:
    y = self.linear(x)
    flat = y.view(-1)
    y.relu_()
    return flat.sum() + y


def fills(self: Any, x: Tensor) -> Tensor:
    return F.relu(self.linear(x).uniform_())


def makes_module(self: Any, x: Tensor) -> Tensor:
    return nn.ReLU()(x)


FAILED = "tracing it failed"
REFUSED: dict[Callable[..., Tensor], str] = {
    decides_on_data: f"{FAILED} .*control flow",
    decides_on_shape: f"{FAILED} .*control flow",
    decides_on_type: f"{FAILED} .*it asks for the type of its data",
    decides_on_argument: r"it decides by an argument that need not be given \(see 'mul'\)",
    reads_mode: r"it does something else in training than in evaluation \(see 'dropout'\)",
    draws: f"{FAILED} .*it draws random numbers",
    makes_tensor: f"{FAILED} .*it makes a tensor that does not depend on its input",
    counts: f"{FAILED} .*it sets its attribute calls",
    collects: f"{FAILED} .*it sets its attribute seen",
    counts_in_buffer: f"{FAILED} .*it sets its attribute _buffers",
    switches_gradients: f"{FAILED} .*it switches gradients or autocast inside",
    switches_autocast: f"{FAILED} .*it switches gradients or autocast inside",
    any_arguments: r"it takes any number of arguments \(\*args or \*\*kwargs\)",
    writes_into_part: f"({FAILED} .*item assignment|it writes into a part of a tensor)",
    reads_through_view: r"what 'relu_' changes in place is read through a view of it \('view'\)",
    fills: "'uniform_' has no form that returns a new tensor",
    makes_module: f"{FAILED} .*not installed as a submodule",
}


@pytest.mark.parametrize("forward", REFUSED)
def test_a_forward_that_a_trace_would_freeze_is_refused(forward: Callable[..., Tensor]) -> None:
    module = type("Odd", (Base,), {"forward": forward})()
    before, held, state = snapshot(module), dict(vars(module)), (random.getstate(), torch.get_rng_state())
    match = f"Expected the forward of this Odd to be one that can be rewritten, but {REFUSED[forward]}.*Keep the"
    with pytest.raises(ValueError, match=match):
        without_calls(module, ["relu:0"])
    assert vars(module) == held
    assert module.seen == []
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])
    assert snapshot(module).keys() == before.keys()


def replaced() -> nn.Module:
    module = grown(Plain)
    module.forward = lambda x: x  # type: ignore[method-assign]
    return module


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.ReLU()), "a Sequential has none of its own: replace its parts"),
        (fx.symbolic_trace(nn.Sequential(nn.ReLU())), "it is a script or a graph already"),
        (replaced(), "another one was set on this instance"),
        (nn.ModuleList(), "it has none in Python"),
    ],
)
def test_modules_without_a_forward_of_their_own_are_refused(module: nn.Module, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        calls_of(module)


class Odd(nn.Module):
    """Calls without a tensor to pass on."""

    def forward(self, x: Tensor, parts: list[Tensor]) -> Tensor:
        return torch.add(x, torch.cat(parts), alpha=2) * 3


CALLS: dict[str, tuple[nn.Module, list[str], str]] = {
    "no such call": (Plain(), ["relu:2"], r"Plain makes \(conv1:0, .*, relu:0, .*, add:0, relu:1\), but got 'relu:2'"),
    "no such name": (Plain(), ["silu:0"], "but got 'silu:0'. Was the plan made for another model"),
    "a child as an operation": (Plain(), ["aten.conv1:0"], "but got 'aten.conv1:0'"),
    "no name": (Plain(), ["relu"], r"the name of a call such as 'relu:1', .* but got 'relu'"),
    "operand of an activation": (Plain(), ["relu:0[0]"], r"but got 'relu:0\[0\]' .* Name the whole call: 'relu:0'"),
    "operand of a child": (Plain(), ["conv1:0[0]"], r"an addition, .* but got 'conv1:0\[0\]'"),
    "no such operand": (Plain(), ["add:0[2]"], r"one of the 2 operands of 'add:0' .* but got 'add:0\[2\]'"),
    "all operands": (Joined(), ["cat:0[0]", "cat:0[1]", "cat:0[2]"], "at least one tensor to stay in 'cat' of this J"),
    "the only tensor": (Joined(), ["add:0[0]"], "at least one tensor to stay in 'add'"),
    "a list from elsewhere": (Odd(), ["cat:0[0]"], r"a concatenation of single tensors, .* \('cat'\) takes a list"),
    "a scaled rest": (Odd(), ["add:0[0]"], r"a plain sum, .* \('add'\) scales the remaining operand \(alpha\)"),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls_that_cannot_go_are_refused(case: str) -> None:
    module, calls, match = CALLS[case]
    with pytest.raises(ValueError, match=match):
        without_calls(module, calls)


def test_a_call_without_a_tensor_is_refused() -> None:
    class Numbers(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.full((x.shape[0],), 1.0)

    with pytest.raises(ValueError, match="Expected a call with a tensor to hand on, but 'full'"):
        without_calls(Numbers(), ["full:0"])
