"""Modules without some calls of their own forward equal handwritten modules without the calls."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torchvision
from cases.models.rewritten import TRAPS, Block, Joined, Plain, calls_of, grown, without_calls
from torch import Tensor, nn
from torch.nn import functional as F


def image(channels: int = 4) -> Tensor:
    return torch.randn(2, channels, 6, 6, generator=torch.Generator().manual_seed(1))


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Return output, gradients of the input and of all parameters, and the input afterwards."""
    x, module = x.clone().requires_grad_(), module.train()
    handed = x * 1.0
    module.zero_grad()
    out = module(handed)
    out.square().sum().backward()
    assert x.grad is not None
    return [out, x.grad, handed, *(p.grad for p in module.parameters() if p.grad is not None), *module.buffers()]


def bottleneck() -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.resnet.Bottleneck(8, 2)


def bottleneck_without(number: int) -> Any:
    """Return the forward of torchvision's Bottleneck, whose ReLU is a single module called three times."""

    def run(block: Any, x: Tensor) -> Tensor:
        acts = [F.relu if i != number else lambda t: t for i in range(3)]
        out = acts[0](block.bn1(block.conv1(x)))
        out = acts[1](block.bn2(block.conv2(out)))
        return acts[2](block.bn3(block.conv3(out)) + x)

    return run


@pytest.mark.parametrize("number", range(3))
def test_one_call_of_a_shared_activation_goes(number: int) -> None:
    block = bottleneck().eval()
    x = image(8)
    rewritten = without_calls(block, [f"relu:{number}"])
    assert torch.equal(rewritten(x), bottleneck_without(number)(block, x))


def test_a_branch_of_a_timm_block_goes_with_its_parameters() -> None:
    torch.manual_seed(0)
    block, x = timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=16, num_heads=2).blocks[0].eval(), None
    x = torch.randn(2, 5, 16)
    rewritten = without_calls(block, ["add:0[1]"])
    assert torch.allclose(rewritten(x), x + block.mlp(block.norm2(x)))
    assert [name for name, _ in rewritten.named_children()] == ["norm2", "mlp", "ls2", "drop_path2"]


def test_a_residual_sum_leaves_its_shortcut_or_its_branch() -> None:
    block, x = grown(Plain).eval(), image()
    branch = block.bn2(block.conv2(F.relu(block.bn1(block.conv1(x)))))
    assert torch.equal(without_calls(block, ["add:0[1]", "relu:1"])(x), x)
    assert torch.equal(without_calls(block, ["add:0[0]", "relu:1"])(x), branch)
    assert torch.equal(without_calls(block, ["add:0", "relu:1"])(x), x)


def test_what_has_become_the_input_is_no_alias_of_it() -> None:
    x = image()
    out = without_calls(grown(Plain), ["add:0[1]", "relu:1"])(x)
    out += 1
    assert torch.equal(x, image())


def test_a_concatenation_goes_on_with_the_others() -> None:
    net, x = grown(Joined), torch.randn(2, 4)
    tail = lambda joined: net.last(joined) * net.gain + 1  # noqa: E731
    two = without_calls(net, ["cat:0[1]"])
    assert torch.equal(two(x), tail(torch.cat([net.a(x), net.c(x)])))
    one = without_calls(net, ["cat:0[0]", "cat:0[2]"])
    assert torch.equal(one(x), tail(net.b(x)))
    assert torch.equal(without_calls(net, ["cat:0"])(x), tail(net.a(x)))


@pytest.mark.parametrize("trap", TRAPS)
def test_calls_that_write_into_their_input_change_nothing_else(trap: str) -> None:
    cls, call, without = TRAPS[trap]
    expected = gradients(grown(without, inplace=False), image())
    found = gradients(without_calls(grown(cls, inplace=True), [call]), image())
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


class ActivatesFirst(Block):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.act(self.conv1(x)) + x)


def test_a_child_does_not_write_into_what_a_removed_layer_hands_on() -> None:
    block, x = grown(ActivatesFirst, inplace=True), image()
    block.conv1 = nn.Identity()
    out = without_calls(block, ["gelu:0"])(x)
    assert torch.equal(x, image())
    assert torch.equal(out, F.relu(x) + x)


@pytest.mark.parametrize("training", [False, True])
def test_dropout_and_batch_norm_follow_the_mode(training: bool) -> None:
    class Dropped(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.drop(self.bn1(self.conv1(x))))

    block, x = grown(Dropped), image()
    rewritten = without_calls(block.train(not training), ["relu:0"]).train(training)
    block.train(training)
    torch.manual_seed(3)
    found = rewritten(x)
    torch.manual_seed(3)
    assert torch.equal(found, block.drop(block.bn1(block.conv1(x))))
    assert (found == 0).any() == training


def test_a_rewritten_forward_is_rewritten_again() -> None:
    block, x = grown(Plain).eval(), image()
    twice = without_calls(without_calls(block, ["relu:0"]), ["relu:0", "add:0[1]"])
    assert torch.equal(twice(x), x)
    assert twice.rerouted == ("relu:0", "relu:0", "add:0[1]")
    assert type(twice).__mro__.count(Plain) == 1
    assert calls_of(twice) == ("clone:0",)
