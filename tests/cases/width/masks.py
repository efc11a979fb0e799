"""Dense models with some activations set to a value, the reference for narrowing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from cases.models.tiny import stir
from torch import Tensor, nn

from prunerecover.model.paths import get_module


@dataclass(frozen=True)
class Mask:
    """Entries of a module's output, or input, to set to `value`."""

    module: str
    dim: int
    indices: tuple[int, ...]
    of: str = "output"
    value: float = 0.0


@contextmanager
def silenced(model: nn.Module, masks: tuple[Mask, ...]) -> Iterator[None]:
    """Run a dense model with some of its activations set to a value."""
    handles = []
    for mask in masks:

        def fill(x: Tensor, mask: Mask = mask) -> Tensor:
            return x.index_fill(mask.dim, torch.tensor(mask.indices), mask.value)

        module = get_module(model, mask.module)
        if mask.of == "input":
            handles.append(module.register_forward_pre_hook(lambda _, args, fill=fill: (fill(args[0]), *args[1:])))
        else:
            handles.append(module.register_forward_hook(lambda _, __, output, fill=fill: fill(output)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def built(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return a maker in double precision and eval mode, with large weights and BatchNorm statistics off their start."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        model = stir(make(), scale=2.0).double()
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.rand_like(buffer))
        return model

    return build


def maps() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)).double()
