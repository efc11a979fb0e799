"""Activations between two linears in networks of no named family; without the activation, the linears merge."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from prunerecover import apply_plan, find_units, load_pruned, plan_depth, save_pruned
from prunerecover.model.copies import deep_copy


class Feedforward(nn.Module):
    """A residual branch of two linears, with dropout on the way."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.first, self.act = nn.Linear(8, hidden), nn.GELU()
        self.drop, self.second = nn.Dropout(0.1), nn.Linear(hidden, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.drop(self.act(self.first(x))))


class Network(nn.Module):
    """Some branches and a head."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches, self.norm, self.head = nn.ModuleList(branches), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for branch in self.branches:
            x = branch(x)
        return self.head(self.norm(x))


def network() -> nn.Module:
    torch.manual_seed(0)
    return Network(*(Feedforward() for _ in range(4))).eval()


X = torch.randn(8, 5, 8, generator=torch.Generator().manual_seed(0))


def test_units_say_what_goes_once_the_linears_are_one() -> None:
    first, *_ = units = find_units(network(), X, "activation")
    assert [unit.name for unit in units] == [f"branches.{i}.act" for i in range(4)]
    assert first.targets == ("branches.0.act", "branches.0.first", "branches.0.second")
    assert first.params == (32 * 8 + 32) + (8 * 32 + 8) - (8 * 8 + 8)
    assert first.macs == 8 * 5 * (2 * 8 * 32 - 8 * 8)


def test_the_linears_become_one_that_computes_the_same_without_the_activation() -> None:
    model = network()
    plan = plan_depth(model, remove={"activation": 1}, batches=[X], ignore=["branches.[013]*"], replace="identity")
    bare = deep_copy(model)
    bare.branches[2].act = nn.Identity()
    apply_plan(model, plan)
    assert model.branches[2].first.weight.shape == (8, 8)
    assert plan.result.params == sum(p.numel() for p in model.parameters())
    torch.testing.assert_close(model(X), bare(X), rtol=1e-5, atol=1e-6)


def test_a_share_of_the_parameters_takes_them_beside_other_kinds(tmp_path: Path) -> None:
    model = network()
    plan = plan_depth(model, remove={"activation": 2, "block": 1}, batches=[X], search="one_shot")
    assert {kind: len(names) for kind, names in plan.removed.items()} == {"activation": 2, "block": 1}
    apply_plan(model, plan)
    save_pruned(model, plan, tmp_path / "pruned")
    assert torch.equal(load_pruned(tmp_path / "pruned", network())(X), model(X))


class Shared(Feedforward):
    """Hidden features with two readers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.act(self.first(x))
        return x + self.second(hidden) + hidden.mean()


class Tied(Feedforward):
    """Both linears share a weight."""

    def __init__(self) -> None:
        super().__init__(8)
        self.second.weight = self.first.weight


class Functional(Feedforward):
    """Activation as a function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(nn.functional.gelu(self.first(x)))


class ReadsItsSecondLinear(Feedforward):
    """As T5's: the forward looks at the second linear's weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(self.act(self.first(x)))
        return x + self.second(hidden.to(self.second.weight.dtype))


class ReadsASize(Feedforward):
    """Forward that divides by a width of the first linear, which changes with the merge."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.act(self.first(x))) / self.first.out_features**0.5


READING = {
    ReadsItsSecondLinear: "the network does not run without it (AttributeError",
    ReadsASize: "the network computes something else once the linears",
}


@pytest.mark.parametrize("branch", [Shared, Tied, Functional, partial(Feedforward, 3), *READING])
def test_those_that_cannot_merge_or_would_save_nothing_are_not_listed(branch: Callable[[], nn.Module]) -> None:
    model = Network(Feedforward(), branch(), Feedforward()).eval()
    assert [unit.name for unit in find_units(model, X, "activation")] == ["branches.0.act", "branches.2.act"]


@pytest.mark.parametrize("branch", READING)
def test_code_that_reads_its_linears_is_given_as_the_reason(branch: type[nn.Module]) -> None:
    found = find_units(Network(branch(), branch()).eval(), X, "activation")
    assert found == ()
    assert found.refused["branches.0.act"].startswith(READING[branch])


def test_its_weights_are_those_of_both_linears() -> None:
    model = network()
    plan = plan_depth(model, remove={"activation": 1}, batches=[X], importance="magnitude")
    for i, branch in enumerate(model.branches):
        both = sum(
            float(p.detach().abs().sum()) for linear in (branch.first, branch.second) for p in linear.parameters()
        )
        assert plan.evidence["importance"][f"branches.{i}.act"] == pytest.approx(both, rel=1e-5)
