"""Units used differently in training and evaluation are tried in training mode, and kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.depth.architectures import ARCHITECTURES
from cases.depth.hybrids import SETTINGS, hybrid
from cases.depth.removal import removals_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from prunerecover import find_units, plan_depth
from prunerecover.graph.trace import trace_graph
from prunerecover.graph.training import training_pass
from prunerecover.model.batches import as_inputs
from prunerecover.model.copies import apart_copy
from prunerecover.model.evaluation import evaluating
from prunerecover.surgery.apply_edits import apply_edits

X = torch.rand(8, 5, 8, generator=torch.Generator().manual_seed(0))


class Branch(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(self.norm(x)).relu())  # type: ignore[no-any-return]


class Fused(nn.Module):
    """Reads the weights of a branch directly in training, like code with fused kernels."""

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other, self.head = Branch(d), Branch(d), nn.Linear(d, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            hidden = F.linear(self.one.norm(x), self.one.up.weight, self.one.up.bias)
            x = x + self.one.down(hidden.relu())
        else:
            x = x + self.one(x)
        return self.head(x + self.other(x))  # type: ignore[no-any-return]


class Reversed(torch.autograd.Function):
    """Adds a branch, and runs it again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, branch: Branch) -> Tensor:  # type: ignore[override]
        ctx.branch = branch
        ctx.save_for_backward(x.detach())
        return x + branch(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            branch = ctx.branch
            torch.autograd.backward(branch.down(branch.up(branch.norm(x)).relu()), grad)
        return grad + x.grad, None


class Reversible(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other, self.stem, self.head = Branch(d), Branch(d), nn.Linear(d, d), nn.Linear(d, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = Reversed.apply(self.stem(x), self.one)
        return self.head(x + self.other(x))  # type: ignore[no-any-return]


class Auxiliary(nn.Module):
    """Branch with a second output in training, as in networks with auxiliary heads."""

    class Second(Branch):
        """The branch."""

        def forward(self, x: Tensor) -> Any:
            hidden = self.up(self.norm(x)).relu()
            return (self.down(hidden), hidden) if self.training else self.down(hidden)

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other, self.head = self.Second(d), Branch(d), nn.Linear(d, 3)
        self.auxiliary = nn.Linear(2 * d, 3)

    def forward(self, x: Tensor) -> Any:
        if self.training:
            found, hidden = self.one(x)
            x = x + found
            return self.head(x + self.other(x)), self.auxiliary(hidden)
        x = x + self.one(x)
        return self.head(x + self.other(x))


class Keeping(nn.Module):
    """Reads a part of a branch to keep state for the next call."""

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other, self.head = Branch(d), Branch(d), nn.Linear(d, 3)

    def forward(self, x: Tensor, use_cache: bool = False) -> Any:
        kept = [self.one.up.weight.shape] if use_cache else []
        x = x + self.one(x)
        out = self.head(x + self.other(x))
        return (out, kept) if use_cache else out


class Checkpointed(nn.Module):
    """Runs its branches again in the backward pass by PyTorch's own function, which also works with replacements."""

    def __init__(self, reentrant: bool, d: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other, self.head, self.reentrant = Branch(d), Branch(d), nn.Linear(d, 3), reentrant

    def forward(self, x: Tensor) -> Tensor:
        for branch in (self.one, self.other):
            x = x + checkpoint(branch, x, use_reentrant=self.reentrant)
        return self.head(x)  # type: ignore[no-any-return]


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
        def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
            if self.training and targets is None:
                raise ValueError("targets are missing")
            return super().forward(x)

    assert [unit.name for unit in find_units(Wants(), X, ("mlp",))] == ["one", "other"]


@pytest.mark.parametrize("network", [Fused, Reversible, Auxiliary])
def test_a_pass_in_training_mode_leaves_no_trace(network: type[nn.Module]) -> None:
    model, norm = network(), nn.BatchNorm1d(5)
    whole = nn.Sequential(norm, nn.Dropout(), model)
    before, mode, apply = torch.random.get_rng_state(), whole.training, vars(torch.autograd.Function).get("apply")
    found = removals_of(whole, X, ("mlp",))
    assert found.units
    assert torch.equal(torch.random.get_rng_state(), before)
    assert whole.training == mode
    assert not norm.num_batches_tracked
    assert all(parameter.grad is None for parameter in whole.parameters())
    assert vars(torch.autograd.Function).get("apply") is apply


def test_copies_share_values_and_not_gradients() -> None:
    model = Fused()
    copied = apart_copy(model)
    copied(X).sum().backward()
    assert model.head.weight.grad is None
    assert copied.head.weight.grad is not None
    assert copied.head.weight.data_ptr() == model.head.weight.data_ptr()


@pytest.mark.parametrize("name", ["unet", "detector", "t5", "llama"])
def test_most_networks_do_the_same_in_training(name: str) -> None:
    model, batch = ARCHITECTURES[name]()
    inputs = as_inputs(batch)
    with evaluating(model):
        graph = trace_graph(model, inputs)
        passed = training_pass(model, inputs, graph)
    assert passed is not None
    assert not [call.path for call in graph.calls if call.path and passed.differs(call.path)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ReformerForMaskedLM", "FalconMambaForCausalLM"])
def test_units_of_transformers_leave_networks_that_train(name: str) -> None:
    assert name in SETTINGS
    model, batch = hybrid(name)
    removals = removals_of(model, batch, ("block", "attention", "mlp", "layer"))
    assert removals.units
    for unit in removals.units:
        left = apart_copy(model)
        apply_edits(left, removals.edits([unit]))
        left.train()(**batch).logits.square().mean().backward()
