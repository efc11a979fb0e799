"""Shortcuts that pad: modules without parameters that subsample an image and put its channels between zeros.

The ResNets of CIFAR (arXiv 1512.03385, option A) have them. How many zeros there are is fixed in code, so no channel
could go before or after them. Such a module equals a 1 x 1 convolution without bias, which can be narrowed like any
other. Found are modules of their own; padding within a larger module's code is not. Once rewritten it is a
`ChannelMap`, which equals such a convolution still.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.evaluation import evaluating
from prunerecover.model.hooks import removed_after
from prunerecover.model.paths import set_module
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


def find_padded_shortcuts(model: nn.Module, inputs: ModelInputs) -> tuple[PaddedShortcut, ...]:
    """Find them by what they do, in one forward pass; the model is bit-identical afterwards."""
    seen: dict[str, tuple[nn.Module, Tensor, torch.Size]] = {}
    with evaluating(model), _shapes(model, seen):
        call(model, inputs)
        found = (_read(path, *what) for path, what in seen.items())
        return tuple(shortcut for shortcut in found if shortcut is not None)


def as_convolutions(model: nn.Module, shortcuts: tuple[PaddedShortcut, ...]) -> None:
    """Put the equal convolutions in place of padded shortcuts, and of those that were rewritten before."""
    like = next(model.parameters(), torch.empty(0))
    convs = {shortcut.path: shortcut.as_conv() for shortcut in shortcuts}
    convs |= {path: _conv(m.weight, m.stride) for path, m in model.named_modules() if isinstance(m, ChannelMap)}
    for path, conv in convs.items():
        set_module(model, path, conv.to(like))


def _conv(weight: Tensor, stride: int) -> nn.Conv2d:
    conv = nn.Conv2d(weight.shape[1], weight.shape[0], 1, stride, bias=False, device="meta")
    conv.weight = nn.Parameter(weight)
    return conv


@contextmanager
def _shapes(model: nn.Module, seen: dict[str, Any]) -> Iterator[None]:
    """Note the shapes of what images become in modules that have neither parameters nor buffers."""

    def note(path: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if len(args) == 1 and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            before, after = args[0].shape, output.shape
            if len(before) == len(after) == 4 and after[1] > before[1]:
                seen[path] = (module, args[0], after)

    handles = []
    for path, module in model.named_modules():
        if path and not any(True for _ in (*module.parameters(), *module.buffers())):
            handles.append(
                module.register_forward_hook(lambda module, args, output, path=path: note(path, module, args, output))
            )
    with removed_after(*handles):
        yield


def _read(path: str, module: nn.Module, images: Tensor, after: torch.Size) -> PaddedShortcut | None:
    """Try the module on noise and compare it with the convolution that it may equal."""
    before = images.shape
    strides = [s for s in range(1, before[2] + 1) if (-(-before[2] // s), -(-before[3] // s)) == tuple(after[2:])]
    if not strides:
        return None
    probe = torch.rand_like(images) + 1
    result = module(probe)
    filled = result.abs().amax((0, 2, 3)).nonzero().flatten()
    if not len(filled):
        return None
    shortcut = PaddedShortcut(path, before[1], after[1], strides[0], int(filled[0]))
    if shortcut.first + shortcut.in_channels > shortcut.out_channels:
        return None
    same = torch.equal(result, F.conv2d(probe, shortcut.weight().to(probe), stride=shortcut.stride))
    return shortcut if same else None
