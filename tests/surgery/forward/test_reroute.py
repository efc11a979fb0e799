"""The edit that takes calls out of a forward: applied, undone, saved and replayed, and refused by name."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
import torchvision
from cases.engine import unchanged
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.apply import apply_plan
from prunerecover.plan.edits import Reroute
from prunerecover.plan.plan import Plan
from prunerecover.recipes.networks.cifar_resnet import CifarResNet
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.surgery.provenance import plan_for

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
BRANCH = Reroute(unit="layer1.0", calls=("add:0[0]", "relu:1"))
EDITS = (Reroute(unit="layer1.0", calls=("relu:0",)), BRANCH.model_copy(update={"calls": ("add:0[1]",)}))


def network() -> nn.Module:
    torch.manual_seed(0)
    return CifarResNet(1).eval()


def expected(net: nn.Module, x: Tensor) -> Tensor:
    x = F.relu(net.bn1(net.conv1(x)))
    block = net.layer1[0]
    x = F.relu(block.bn2(block.conv2(block.bn1(block.conv1(x)))) + x)
    return net.linear(net.layer3(net.layer2(x)).mean((2, 3)))


def test_the_edit_takes_a_call_out_of_a_block() -> None:
    net = network()
    want = expected(net, X)
    apply_edits(net, EDITS[:1])
    assert torch.equal(net(X), want)


def test_parameters_that_leave_are_reported() -> None:
    net = network()
    applied = apply_edits(net, [Reroute(unit="layer1.0", calls=("add:0[0]",))])
    assert set(applied.removed) == {f"layer1.0.{name}" for name in ("conv1.weight", "conv2.weight")} | {
        f"layer1.0.bn{i}.{name}" for i in (1, 2) for name in ("weight", "bias")
    }
    assert not applied.added
    assert isinstance(net.layer1[0].shortcut, nn.Identity)


def test_undo_is_exact_and_keeps_the_order() -> None:
    net = network()
    with unchanged(net):
        applied = apply_edits(net, [*EDITS, Reroute(unit="", calls=("relu:0", "layer2:0"))])
        undo(net, applied.journal)
    assert type(net) is CifarResNet
    assert torch.equal(net(X), network()(X))
    assert list(net.state_dict()) == list(network().state_dict())
    assert str(net) == str(network())


def test_undo_follows_pickling_a_change_of_mode_and_training() -> None:
    net = network()
    applied = apply_edits(net, EDITS)
    applied.journal.to_cpu()
    net.train()
    with torch.no_grad():
        net.linear.bias.fill_(7.0)
    undo(net, pickle.loads(pickle.dumps(applied.journal)))
    assert all(module.training for module in net.modules())
    assert (net.linear.bias == 7).all()
    assert (net.eval()(X) - network()(X)).mean() > 6


def test_the_networks_own_forward_is_rewritten_in_place() -> None:
    net = network()
    x = net.bn1(net.conv1(X))
    want = net.linear(net.layer3(net.layer2(net.layer1(x))).mean((2, 3)))
    apply_edits(net, [Reroute(unit="", calls=("relu:0",))])
    assert torch.equal(net(X), want)


def test_a_saved_plan_makes_the_same_network(tmp_path: Path) -> None:
    net, again = network(), network()
    plan = plan_for(net, EDITS, method="by hand", example=X)
    assert plan.to_dict()["edits"][0] == {"op": "reroute", "unit": "layer1.0", "calls": ["relu:0"]}
    assert plan.result.settings["rerouted"]
    apply_plan(net, plan)
    apply_plan(again, Plan.load(plan.save(tmp_path / "plan.json")))
    assert torch.equal(net(X), again(X))
    assert sum(p.numel() for p in again.parameters()) == plan.result.params


def test_a_plan_is_not_applied_twice() -> None:
    net = network()
    plan = plan_for(net, [Reroute(unit="layer1.0", calls=("relu:0",))], method="by hand")
    apply_plan(net, plan)
    with (
        unchanged(net),
        pytest.raises(ValueError, match=r"nothing was taken out of forwards there, but \('relu:0',\) in this"),
    ):
        apply_plan(net, plan)


def test_plans_compose() -> None:
    net = network()
    first = plan_for(net, EDITS[:1], method="by hand")
    half = network()
    apply_plan(half, first)
    second = plan_for(half, EDITS[1:], method="by hand")
    apply_plan(net, first + second)
    apply_plan(half, second)
    assert torch.equal(net(X), half(X))


def test_blocks_of_torchvision_are_reached() -> None:
    torch.manual_seed(0)
    net = torchvision.models.resnet18(num_classes=4).eval()
    applied = apply_edits(net, [Reroute(unit=f"layer{i}.1", calls=("relu:0",)) for i in (1, 2, 3, 4)])
    assert net(X).shape == (2, 4)
    assert not applied.removed
    assert str(net.layer2[1]).startswith("BasicBlock(\n  without relu:0\n")


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (Reroute(unit="layer1.9", calls=("relu:0",)), r"Expected a module at 'layer1\.9', but layer1 .* has no '9'"),
        (
            Reroute(unit="layer1.0", calls=("relu:5",)),
            r"a call that the forward of 'layer1\.0' makes \(conv1:0, bn1:0, .*\), but got 'relu:5'",
        ),
        (Reroute(unit="layer1", calls=("0:0",)), "the forward of 'layer1' .* a Sequential has none of its own"),
    ],
)
def test_an_edit_that_fails_leaves_the_network_as_it_was(edit: Reroute, match: str) -> None:
    net = network()
    with unchanged(net), pytest.raises(ValueError, match=match):
        apply_edits(net, [*EDITS, edit])
    assert str(net) == str(network())


@pytest.mark.parametrize(("calls", "match"), [((), "at least 1 item"), (("relu",), "the name of a call such as")])
def test_an_edit_without_names_of_calls_is_refused(calls: tuple[str, ...], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Reroute(unit="layer1.0", calls=calls)
