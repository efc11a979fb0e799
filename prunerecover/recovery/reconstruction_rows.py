"""Rows of a fit: inputs of a layer of the pruned network, and the gap between the output and the dense output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.model.batches import ModelInputs
from prunerecover.model.paths import get_module
from prunerecover.recovery.branch_ends import at_end

PATCHES = 2**25  # entries of the patches of a convolution in memory at once


@dataclass(frozen=True)
class FittedLayer:
    """A layer to fit.

    Attributes:
        path: Path of the layer.
        rows: Indices of the kept outputs of the dense layer; None: all.
        calls: Number of calls in a pass.
        end: Path of the BatchNorm behind the layer, or `NO_NORM`, at the end of a branch; else None.
    """

    path: str
    rows: Tensor | None
    calls: int
    end: str | None


def missing_outputs(
    network: FrontToBack, dense: FrontToBack, fitted: FittedLayer, inputs: ModelInputs
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the input of a layer at each call, and the gap of its output, or of the sum at the end of a branch."""
    dim = 1 if isinstance(get_module(network.network, fitted.path), nn.Conv2d) else -1

    def left(target: Tensor) -> Tensor:
        return target if fitted.rows is None else target.index_select(dim, fitted.rows.to(target.device))

    def seen(passes: FrontToBack) -> list[tuple[Tensor, Tensor]]:
        if fitted.end is not None:
            return at_end(passes, fitted.path, fitted.end, inputs)
        return passes.seen_at(fitted.path, inputs, fitted.calls)

    now, then = seen(network), seen(dense)
    if len(now) == len(then):  # else the two networks take different paths on this batch
        for (x, y), (_, target) in zip(now, then, strict=True):
            yield x, left(target) - y


def rows_of(layer: nn.Module, x: Tensor, missing: Tensor, wanted: int, generator: torch.Generator) -> Tensor:
    """Return inputs and gaps of the outputs, side by side, at positions drawn alike for all samples.

    Args:
        layer: Layer to fit.
        x: Inputs of the layer.
        missing: Gap of the outputs, `(N, outputs, H, W)` of a convolution, `(..., outputs)` of a linear layer.
        wanted: Number of positions per sample.
        generator: Generator of the positions.

    Returns:
        `(rows, inputs + outputs)`.
    """
    if isinstance(layer, nn.Conv2d):
        missing = missing.flatten(2).transpose(1, 2)
        at = _drawn(missing.shape[1], wanted, generator).to(x.device)
        few = max(1, PATCHES // (layer.weight[0].numel() * missing.shape[1]))
        patches = [_patches(layer, part)[..., at] for part in torch.split(x, few)]
        return torch.cat([torch.cat(patches).transpose(1, 2).float(), missing[:, at]], -1).flatten(0, 1)
    pairs = torch.cat([x.float(), missing], -1)
    pairs = pairs.flatten(1, -2) if pairs.ndim > 2 else pairs[:, None]
    return pairs[:, _drawn(pairs.shape[1], wanted, generator).to(x.device)].flatten(0, 1)


def _patches(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Return the patch at each position of a convolution, `(N, inputs, positions)`."""
    return F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]


def _drawn(n: int, wanted: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(n, generator=generator)[:wanted] if n > wanted else torch.arange(n)
