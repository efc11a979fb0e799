"""Padded shortcuts: modules without parameters that subsample an image and put the channels between zeros.

The ResNets of CIFAR (arXiv 1512.03385, option A) have padded shortcuts. The number of zeros is fixed in code: no
channel before or after the shortcut could be removed. A padded shortcut equals a 1 x 1 convolution without bias,
narrowable as any convolution. Only separate modules are found; padding within a larger module's code is not. A
rewritten shortcut is a `ChannelMap`, still equal to the convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from prunerecover.graph.trace import Traced
from prunerecover.model.evaluation import evaluating
from prunerecover.model.paths import get_module, set_module
from prunerecover.model.replacements import ChannelMap
from prunerecover.plan.edits import Rewrite


def find_padded_shortcuts(traced: Traced) -> tuple[Rewrite, ...]:
    """Return the rewrites of the padded shortcuts of a traced network, recognised by their outputs.

    The network is bit-identical afterwards.
    """
    model, found = traced.model, list[Rewrite | None]()
    with evaluating(model):
        for path, nodes in traced.graph.by_module.items():
            module = get_module(model, path)
            if next(chain(module.parameters(), module.buffers()), None) is None:
                found.append(_read(path, module, nodes[-1].given, nodes[-1].shape, _like(model)))
    return tuple(shortcut for shortcut in found if shortcut is not None)


def as_convolutions(model: nn.Module, shortcuts: Sequence[Rewrite]) -> None:
    """Put equal convolutions in place of padded shortcuts, and of shortcuts rewritten before."""
    maps = {path: module for path, module in model.named_modules() if isinstance(module, ChannelMap)}
    for path, one in {**{edit.unit: _map(edit) for edit in shortcuts}, **maps}.items():
        conv = nn.Conv2d(one.weight.shape[1], one.weight.shape[0], 1, one.stride, bias=False, device="meta")
        conv.weight = nn.Parameter(one.weight)
        set_module(model, path, conv.to(_like(model)))


def _map(edit: Rewrite) -> ChannelMap:
    return ChannelMap(edit.in_channels, edit.out_channels, edit.stride, edit.first)


def _like(model: nn.Module) -> Tensor:
    return next(model.parameters(), torch.empty(0))


def _read(
    path: str, module: nn.Module, before: tuple[int, ...], after: tuple[int, ...], like: Tensor
) -> Rewrite | None:
    """Try a module with more output than input channels on noise, and compare with a candidate for the rewrite.

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
    if not len(filled) or (first := int(filled[0])) + before[1] > after[1]:
        return None
    edit = Rewrite(unit=path, in_channels=before[1], out_channels=after[1], stride=strides[0], first=first)
    return edit if torch.equal(result, _map(edit).to(probe)(probe)) else None
