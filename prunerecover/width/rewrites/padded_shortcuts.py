"""Shortcuts that pad: modules without parameters that subsample an image and put its channels between zeros.

The ResNets of CIFAR (arXiv 1512.03385, option A) have them. How many zeros there are is fixed in code, so no channel
could go before or after them. Such a module equals a 1 x 1 convolution without bias, which can be narrowed like any
other. Found are modules of their own; padding within a larger module's code is not. Once rewritten it is a
`ChannelMap`, which equals such a convolution still.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.graph.trace import Traced
from prunerecover.model.evaluation import evaluating
from prunerecover.model.paths import get_module, set_module
from prunerecover.model.replacements import ChannelMap


@dataclass(frozen=True)
class PaddedShortcut:
    """What such a module does: `output[:, first + c, i, j] = input[:, c, i * stride, j * stride]`, zeros elsewhere."""

    path: str
    in_channels: int
    out_channels: int
    stride: int
    first: int

    def as_conv(self) -> nn.Conv2d:
        """Return the equal convolution."""
        return _conv(self.weight(), self.stride)

    def weight(self) -> Tensor:
        """Return its weight, `(out, in, 1, 1)`: one 1 per input channel."""
        weight = torch.zeros(self.out_channels, self.in_channels, 1, 1)
        weight[self.first :][: self.in_channels] = torch.eye(self.in_channels)[:, :, None, None]
        return weight


def find_padded_shortcuts(traced: Traced) -> tuple[PaddedShortcut, ...]:
    """Return those of a traced network, which are known by what they do; it is bit-identical afterwards."""
    model, found = traced.model, list[PaddedShortcut | None]()
    with evaluating(model):
        for path, nodes in traced.graph.by_module.items():
            module = get_module(model, path)
            if next(chain(module.parameters(), module.buffers()), None) is None:
                found.append(_read(path, module, nodes[-1].given, nodes[-1].shape, _like(model)))
    return tuple(shortcut for shortcut in found if shortcut is not None)


def as_convolutions(model: nn.Module, shortcuts: tuple[PaddedShortcut, ...]) -> None:
    """Put the equal convolutions in place of padded shortcuts, and of those that were rewritten before."""
    convs = {shortcut.path: shortcut.as_conv() for shortcut in shortcuts}
    convs |= {path: _conv(m.weight, m.stride) for path, m in model.named_modules() if isinstance(m, ChannelMap)}
    for path, conv in convs.items():
        set_module(model, path, conv.to(_like(model)))


def _conv(weight: Tensor, stride: int) -> nn.Conv2d:
    conv = nn.Conv2d(weight.shape[1], weight.shape[0], 1, stride, bias=False, device="meta")
    conv.weight = nn.Parameter(weight)
    return conv


def _like(model: nn.Module) -> Tensor:
    return next(model.parameters(), torch.empty(0))


def _read(
    path: str, module: nn.Module, before: tuple[int, ...], after: tuple[int, ...], like: Tensor
) -> PaddedShortcut | None:
    """Try a module on noise where it makes more channels of an image, and compare it with the convolution it may equal.

    Args:
        path: Of the module.
        module: Without parameters and buffers.
        before: Shape of what it read.
        after: Shape of what it gave.
        like: Tensor of the device and dtype that it is tried in.
    """
    if not len(before) == len(after) == 4 or after[1] <= before[1]:
        return None
    strides = [s for s in range(1, before[2] + 1) if (-(-before[2] // s), -(-before[3] // s)) == after[2:]]
    if not strides:
        return None
    probe = torch.rand(before).to(like) + 1
    result = module(probe)
    filled = result.abs().amax((0, 2, 3)).nonzero().flatten()
    if not len(filled):
        return None
    shortcut = PaddedShortcut(path, before[1], after[1], strides[0], int(filled[0]))
    if shortcut.first + shortcut.in_channels > shortcut.out_channels:
        return None
    same = torch.equal(result, F.conv2d(probe, shortcut.weight().to(probe), stride=shortcut.stride))
    return shortcut if same else None
