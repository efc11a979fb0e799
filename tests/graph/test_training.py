"""Units used differently in training and evaluation are tried in training mode, and kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.depth.architectures import ARCHITECTURES
from cases.depth.removal import removals_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from prunerecover import find_units, plan_depth
from prunerecover.graph.trace import trace_graph
from prunerecover.graph.training import training_pass
from prunerecover.model.batches import as_inputs
from prunerecover.model.evaluation import evaluating

X = torch.rand(8, 5, 8, generator=torch.Generator().manual_seed(0))


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Any:
        return self.down(self.up(self.norm(x)).relu())


class Network(nn.Module):
    """Two branches and a head."""

    def __init__(self, one: type[Branch] = Branch) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other, self.head = one(), Branch(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        x = x + self.one(x)
        return self.head(x + self.other(x))


class Fused(Network):
    """Reads the weights of a branch directly in training, like code with fused kernels."""

    def forward(self, x: Tensor) -> Any:
        if not self.training:
            return super().forward(x)
        hidden = F.linear(self.one.norm(x), self.one.up.weight, self.one.up.bias)
        x = x + self.one.down(hidden.relu())
        return self.head(x + self.other(x))


class Reversed(torch.autograd.Function):
    """Adds a branch, and runs it again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, branch: Branch) -> Tensor:  # type: ignore[override]
        ctx.branch = branch
        ctx.save_for_backward(x.detach())
        return x + branch(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            branch = ctx.branch
            torch.autograd.backward(branch.down(branch.up(branch.norm(x)).relu()), grad)
        return grad + x.grad, None


class Reversible(Network):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        x = Reversed.apply(self.stem(x), self.one)
        return self.head(x + self.other(x))


class Second(Branch):
    """Branch with a second output in training."""

    def forward(self, x: Tensor) -> Any:
        hidden = self.up(self.norm(x)).relu()
        return (self.down(hidden), hidden) if self.training else self.down(hidden)


class Auxiliary(Network):
    """Reads the second output in training, as networks with auxiliary heads."""

    def __init__(self) -> None:
        super().__init__(Second)
        self.auxiliary = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Any:
        if not self.training:
            return super().forward(x)
        found, hidden = self.one(x)
        x = x + found
        return self.head(x + self.other(x)), self.auxiliary(hidden)


class Keeping(Network):
    """Reads a part of a branch to keep state for the next call."""

    def forward(self, x: Tensor, use_cache: bool = False) -> Any:
        kept = [self.one.up.weight.shape] if use_cache else []
        out = super().forward(x)
        return (out, kept) if use_cache else out


class Checkpointed(Network):
    """Runs its branches again in the backward pass by PyTorch's own function, which also works with replacements."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Any:
        for branch in (self.one, self.other):
            x = x + checkpoint(branch, x, use_reentrant=self.reentrant)
        return self.head(x)


@pytest.mark.parametrize(
    ("network", "why"),
    [(Fused, "Attribute"), (Reversible, "Attribute"), (Auxiliary, "Type"), (Keeping, "Attribute")],
)
def test_a_branch_that_training_uses_otherwise_stays(network: type[nn.Module], why: str) -> None:
    model = network().eval()
    units = find_units(model, X, ("mlp",))
    assert [unit.name for unit in units] == ["other"]
    assert units.refused["one"].startswith(f"the network does not train without it ({why}")
    plan = plan_depth(model, remove={"mlp": 1}, batches=[X])
    assert plan.removed == {"mlp": ("other",)}


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_branches_are_units(reentrant: bool) -> None:
    assert [unit.name for unit in find_units(Checkpointed(reentrant), X, ("mlp",))] == ["one", "other"]


def test_networks_that_do_not_train_with_inputs_alone_are_planned_all_the_same() -> None:
    class Wants(Fused):
        def forward(self, x: Tensor, targets: Tensor | None = None) -> Any:
            if self.training and targets is None:
                raise ValueError("targets are missing")
            return super().forward(x)

    assert [unit.name for unit in find_units(Wants(), X, ("mlp",))] == ["one", "other"]


def test_a_pass_in_training_mode_leaves_no_trace() -> None:
    norm = nn.BatchNorm1d(5)
    whole = nn.Sequential(norm, nn.Dropout(), Reversible())
    before, mode, apply = torch.random.get_rng_state(), whole.training, vars(torch.autograd.Function).get("apply")
    assert removals_of(whole, X, ("mlp",)).units
    assert torch.equal(torch.random.get_rng_state(), before)
    assert whole.training == mode
    assert not norm.num_batches_tracked
    assert all(parameter.grad is None for parameter in whole.parameters())
    assert vars(torch.autograd.Function).get("apply") is apply


@pytest.mark.parametrize("name", ["detector", "t5", "llama"])
def test_most_networks_do_the_same_in_training(name: str) -> None:
    model, batch = ARCHITECTURES[name]()
    inputs = as_inputs(batch)
    with evaluating(model):
        graph = trace_graph(model, inputs)
        passed = training_pass(model, inputs, graph)
    assert passed is not None
    assert not [call.path for call in graph.calls if call.path and passed.differs(call.path)]
