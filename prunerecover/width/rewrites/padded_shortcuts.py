"""Padded shortcuts: modules without parameters that subsample an image and put the channels between zeros.

The ResNets of CIFAR (arXiv 1512.03385, option A) have padded shortcuts. The number of zeros is fixed in code: no
channel before or after the shortcut could be removed. A padded shortcut equals a 1 x 1 convolution without bias,
narrowable as any convolution. Only separate modules are found; padding within a larger module's code is not. A
rewritten shortcut is a `ChannelMap`, still equal to the convolution.
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
    """Padded shortcut: `output[:, first + c, i, j] = input[:, c, i * stride, j * stride]`, zeros elsewhere.

    Attributes:
        path: Path of the module.
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        stride: Distance of the sampled pixels.
        first: Output channel of input channel 0.
    """

    path: str
    in_channels: int
    out_channels: int
    stride: int
    first: int

    def as_conv(self) -> nn.Conv2d:
        """Return the equal convolution."""
        return _conv(self.weight(), self.stride)

    def weight(self) -> Tensor:
        """Return the weight of the convolution, `(out, in, 1, 1)`: a single 1 per input channel."""
        weight = torch.zeros(self.out_channels, self.in_channels, 1, 1)
        weight[self.first :][: self.in_channels] = torch.eye(self.in_channels)[:, :, None, None]
        return weight


def find_padded_shortcuts(traced: Traced) -> tuple[PaddedShortcut, ...]:
    """Return the padded shortcuts of a traced network, recognised by their outputs.

    The network is bit-identical afterwards.
    """
    model, found = traced.model, list[PaddedShortcut | None]()
    with evaluating(model):
        for path, nodes in traced.graph.by_module.items():
            module = get_module(model, path)
            if next(chain(module.parameters(), module.buffers()), None) is None:
                found.append(_read(path, module, nodes[-1].given, nodes[-1].shape, _like(model)))
    return tuple(shortcut for shortcut in found if shortcut is not None)


def as_convolutions(model: nn.Module, shortcuts: tuple[PaddedShortcut, ...]) -> None:
    """Put equal convolutions in place of padded shortcuts, and of shortcuts rewritten before."""
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
    """Try a module with more output than input channels on noise, and compare with a candidate convolution.

    Args:
        path: Path of the module.
        module: Module without parameters and buffers.
        before: Shape of the input.
        after: Shape of the output.
        like: Tensor of the device and dtype for the trial.
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
