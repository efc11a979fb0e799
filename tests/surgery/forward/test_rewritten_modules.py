"""Rewritten modules are ordinary modules, and the removal of calls is applied, undone, saved and replayed."""

from __future__ import annotations

import copy
import inspect
import io
from pathlib import Path

import pytest
import torch
from cases.engine import unchanged
from cases.models.rewritten import Plain, grown, without_calls
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.apply import apply_plan
from prunerecover.plan.edits import Reroute
from prunerecover.plan.plan import Plan
from prunerecover.recipes.networks.cifar_resnet import BasicBlock, CifarResNet
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.surgery.forward.rewritten_forward import find_rewriting, install
from prunerecover.surgery.provenance import plan_for


def test_it_stays_what_it_was() -> None:
    block = grown(Plain).train()
    block.bn1.eval()
    block.stride = 3
    block.register_buffer("aside", torch.ones(1), persistent=False)
    new = without_calls(block, ["relu:0"])
    assert isinstance(new, Plain)
    assert list(new.state_dict()) == list(block.state_dict())
    assert all(a is b for a, b in zip(new.parameters(), block.parameters(), strict=True))
    assert all(a is b for a, b in zip(new.buffers(), block.buffers(), strict=True))
    assert [m.training for m in new.modules()] == [m.training for m in block.modules()]
    assert new.stride == 3


def test_it_is_shown_with_what_was_taken_out() -> None:
    new = without_calls(grown(Plain), ["relu:0", "add:0[1]"])
    assert repr(new).startswith("Plain(\n  without relu:0 add:0[1]\n  (act): ReLU()")
    assert "def forward(self, x):" in inspect.getsource(new.forward)


@pytest.mark.slow
def test_it_is_exported_to_onnx() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    block, x = without_calls(BasicBlock(4, 4).eval(), ["relu:0"]), torch.randn(2, 4, 6, 6)
    file = io.BytesIO()
    program = torch.onnx.export(block, (x,), dynamo=True, verbose=False)
    program.save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    assert torch.allclose(torch.from_numpy(found), block(x), atol=1e-4)


def test_hooks_on_it_and_in_it_go_on() -> None:
    block, x, seen = grown(Plain).eval(), torch.randn(2, 4, 6, 6), []
    handle = block.register_forward_hook(lambda *_: seen.append("block"))
    block.conv1.register_forward_hook(lambda *_: seen.append("conv1"))
    install(block, find_rewriting(block, ["relu:0"]))
    block(x)
    handle.remove()
    block(x)
    assert seen == ["conv1", "block", "conv1"]


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = 2

    def forward(self, x: Tensor, scale: float = 2.0, *, shift: float = 1.0) -> Tensor:
        n, c = x.shape
        return F.relu(x.reshape(n, self.heads, c // self.heads)).flatten(1) * scale + shift


def test_arguments_and_their_defaults_stay() -> None:
    new, x = without_calls(Heads(), ["relu:0"]), torch.randn(3, 4)
    assert torch.equal(new(x), x * 2 + 1)
    assert torch.equal(new(x[:2], scale=3.0, shift=0.0), x[:2] * 3)


def test_numbers_in_the_code_cannot_change_unnoticed() -> None:
    new = without_calls(without_calls(Heads(), ["relu:0"]), ["mul:0"])
    new.heads = 2
    new.other = 5
    with pytest.raises(ValueError, match=r"Expected 'heads' of this rewritten Heads to stay 2, .* but got 4\. Set or"):
        new.heads = 4
    assert copy.deepcopy(new).heads == 2


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


def test_undo_is_exact_and_keeps_the_order() -> None:
    net = network()
    with unchanged(net):
        applied = apply_edits(net, [*EDITS, Reroute(unit="", calls=("relu:0", "layer2:0"))])
        undo(net, applied.journal)
    assert type(net) is CifarResNet
    assert torch.equal(net(X), network()(X))
    assert list(net.state_dict()) == list(network().state_dict())
    assert str(net) == str(network())


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


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (Reroute(unit="layer1.9", calls=("relu:0",)), r"Expected a module at 'layer1\.9', but layer1 .* has no '9'"),
        (Reroute(unit="layer1.0", calls=("relu:5",)), r"of 'layer1\.0' makes \(conv1:0, bn1:0, .*\), but got 'relu:5'"),
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
