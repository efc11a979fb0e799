"""Code with a reference to the network meets a copy, and finds the network unchanged afterwards."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.models.habits import tiny_vit
from torch import Tensor, nn

from prunerecover import Budget, plan_depth, plan_pruning, plan_width
from prunerecover.model.copies import hooked_copy, share_copy
from prunerecover.plan.edits import Remove
from prunerecover.session.session import Session
from prunerecover.session.standing_in import bound_to, standing_in

IMAGES, LABELS = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 4
BATCHES = [(IMAGES[:8], LABELS[:8]), (IMAGES[8:], LABELS[8:])]


def held(module: nn.Module) -> dict[str, Any]:
    """Return the identity of every module and of its contents."""
    found: dict[str, Any] = {}
    for path, own in module.named_modules():
        found[path] = id(own), type(own), {name: id(value) for name, value in vars(own).items()}
        for registry in ("_modules", "_parameters", "_buffers", "_forward_hooks", "_forward_pre_hooks"):
            found[f"{path}.{registry}"] = {name: id(value) for name, value in vars(own)[registry].items()}
    return found


def test_calls_and_parts_are_those_of_the_copy_inside_and_of_the_network_outside() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    copied, before = share_copy(network), held(network)
    copied[1] = nn.Identity()
    x = torch.tensor([[-1.0, 2.0]])
    with standing_in(copied, network):
        assert network[1] is copied[1]
        assert torch.equal(network(x), copied(x))
    assert held(network) == before
    assert not torch.equal(network(x), copied(x))


def test_the_network_is_back_after_an_error() -> None:
    network = nn.Sequential(nn.Linear(2, 2))
    before = held(network)
    with pytest.raises(KeyError), standing_in(nn.Sequential(nn.Identity()), network):
        raise KeyError
    assert held(network) == before


def test_a_network_stands_in_for_itself() -> None:
    network = nn.Linear(2, 2)
    with standing_in(network, network):
        assert network(torch.ones(1, 2)).shape == (1, 2)


def test_a_lightning_module_keeps_its_trainer() -> None:
    module = pl.LightningModule()
    module._trainer = trainer = object()  # type: ignore[assignment]
    with standing_in(share_copy(module), module):
        assert module._trainer is trainer


def test_hooks_of_a_copy_see_what_a_closure_calls() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    copied, seen = share_copy(network), list[Tensor]()
    copied[0].register_forward_hook(lambda _, __, output: seen.append(output))
    loss = bound_to(network, lambda _, batch: network(batch).sum())
    loss(copied, torch.ones(1, 2))
    assert len(seen) == 1


def test_a_copy_with_hooks_computes_what_the_network_does() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    network[1].register_forward_hook(lambda _, __, output: output + 1)
    x = torch.randn(3, 2)
    assert torch.equal(hooked_copy(network)(x), network(x))
    assert not torch.equal(share_copy(network)(x), network(x))


@pytest.mark.parametrize("plan", [plan_depth, plan_width, plan_pruning])
def test_planning_leaves_the_module_and_its_parts_the_same_objects(plan: Any) -> None:
    """A loss that closes over the network works, too, and sees hooks and edits of the copy."""
    network = tiny_vit()
    before, edited = held(network), list[bool]()

    def loss(_: nn.Module, batch: Any) -> Tensor:
        edited.append(held(network) != before)
        return nn.functional.cross_entropy(network(batch[0]), batch[1])

    how = {"importance": "cross_entropy", "search": "one_shot"} if plan is plan_depth else {}
    assert plan(network, Budget(macs=0.2), batches=BATCHES, loss=loss, **how).edits
    assert held(network) == before
    assert all(edited)


def test_sessions_share_samples_and_no_outputs() -> None:
    session = Session(tiny_vit(), BATCHES)
    other = session.pruned([Remove(unit="blocks.0.attn", kind="attention")], {})
    assert other.samples is session.samples
    assert other.output is not session.output
    counted = session.cost("macs")
    assert session.cost("macs") is counted
    assert other.cost("macs") is not counted
    assert other.model is not session.model


def test_a_session_holds_tensors_of_the_network_and_no_module() -> None:
    network = tiny_vit()
    session = Session(network, BATCHES)
    assert {id(p) for p in session.model.parameters()} == {id(p) for p in network.parameters()}
    assert not set(session.model.modules()) & set(network.modules())


def test_statistics_of_a_session_are_its_own_and_hooks_stay() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    network[0].register_forward_hook(lambda _, __, output: output + 1)
    session = Session(network, [torch.randn(8, 4)])
    session.take_statistics({"1.running_mean": torch.ones(4)})
    assert torch.equal(network[1].running_mean, torch.zeros(4))
    x = torch.randn(2, 4)
    torch.testing.assert_close(session.model.eval()(x), network(x) - 1 / (1 + network[1].eps) ** 0.5)
