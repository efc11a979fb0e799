"""Rewritten modules are ordinary ones: they are copied, pickled, exported and compiled like any other."""

from __future__ import annotations

import copy
import inspect
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cases.models.rewritten import Joined, Plain, grown
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.recipes.networks.cifar_resnet import BasicBlock
from prunerecover.surgery.forward.rewritten_forward import without_calls


def rewritten() -> tuple[nn.Module, Tensor]:
    """A block without its first activation, and an input."""
    torch.manual_seed(0)
    return without_calls(BasicBlock(4, 4).eval(), ["relu:0"]), torch.randn(2, 4, 6, 6)


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
    assert list(new.children()) == list(block.children())
    assert [m.training for m in new.modules()] == [m.training for m in block.modules()]
    assert new.stride == 3


def test_the_module_that_was_given_stays_as_it_was() -> None:
    net, x = grown(Joined), torch.randn(2, 4)
    before, names = net(x), list(net.state_dict())
    without_calls(net, ["cat:0[0]", "mul:0[1]"])
    assert type(net) is Joined
    assert list(net.state_dict()) == names
    assert torch.equal(net(x), before)


def test_it_is_shown_with_what_was_taken_out() -> None:
    new = without_calls(grown(Plain), ["relu:0", "add:0[1]"])
    assert repr(new).startswith("Plain(\n  without relu:0 add:0[1]\n  (act): ReLU()")
    assert "def forward(self, x):" in inspect.getsource(new.forward)


def test_its_copy_is_one_of_its_own() -> None:
    block, x = rewritten()
    new = copy.deepcopy(block)
    assert torch.equal(new(x), block(x))
    assert type(new) is type(block)
    assert new.conv1.weight is not block.conv1.weight


@pytest.mark.slow
def test_it_can_be_read_in_a_new_process(in_a_new_process: Callable[[str], None], tmp_path: Path) -> None:
    block, x = rewritten()
    torch.save({"block": block, "x": x, "out": block(x)}, tmp_path / "block.pt")
    in_a_new_process(
        f"held = torch.load({str(tmp_path / 'block.pt')!r}, weights_only=False)\n"
        "assert torch.equal(held['block'](held['x']), held['out'])\n"
        "assert held['block'].rerouted == ('relu:0',)"
    )


def test_its_state_is_loaded_strictly() -> None:
    block, _ = rewritten()
    other, x = without_calls(BasicBlock(4, 4).eval(), ["relu:0"]), torch.randn(2, 4, 6, 6)
    other.load_state_dict(block.state_dict(), strict=True)
    assert torch.equal(other(x), block(x))


def test_it_is_exported() -> None:
    block, x = rewritten()
    assert torch.allclose(torch.export.export(block, (x,)).module()(x), block(x), atol=1e-6)


@pytest.mark.slow
def test_it_is_exported_to_onnx() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    block, x = rewritten()
    file = io.BytesIO()
    program = torch.onnx.export(block, (x,), dynamo=True, verbose=False)
    program.save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    assert torch.allclose(torch.from_numpy(found), block(x), atol=1e-4)


@pytest.mark.slow
def test_it_is_compiled_and_differs_from_the_one_before() -> None:
    torch.manual_seed(0)
    block, x = BasicBlock(4, 4).eval(), torch.randn(2, 4, 6, 6)
    dense = torch.compile(block, backend="eager", fullgraph=True)(x)
    new = without_calls(block, ["relu:0"])
    assert torch.equal(torch.compile(new, backend="eager", fullgraph=True)(x), new(x))
    assert not torch.equal(new(x), dense)


def test_compiled_calls_stay_with_the_module_that_was_compiled() -> None:
    torch.manual_seed(0)
    block, x = BasicBlock(4, 4).eval(), torch.randn(2, 4, 6, 6)
    block.compile(backend="eager")
    dense = block(x)
    assert not torch.equal(without_calls(block, ["relu:0"])(x), dense)


def test_hooks_on_it_and_in_it_go_on() -> None:
    block, x, seen = grown(Plain).eval(), torch.randn(2, 4, 6, 6), []
    handle = block.register_forward_hook(lambda *_: seen.append("block"))
    block.conv1.register_forward_hook(lambda *_: seen.append("conv1"))
    new = without_calls(block, ["relu:0"])
    new(x)
    handle.remove()
    new(x)
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
