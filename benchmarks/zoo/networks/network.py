"""Network of the zoo: its construction with random weights, a batch, and its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_leaves

from prunerecover.importance.measuring.losses import Loss
from prunerecover.model.batches import as_inputs, call, without_labels
from prunerecover.model.key_values import CACHES

CLASSES, SAMPLES = 10, 4
MakeBatch = Callable[[Generator], Any]
Draw = Callable[[Generator], Tensor]


@dataclass(frozen=True)
class Network:
    """Network under the name of its row.

    Attributes:
        build: Function that builds the network, with weights from torch's global random state.
        batch: Function that makes a batch, in the form of a user's loader.
        loss: None: the batches are labelled, and the default loss does.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: MakeBatch
    loss: Loss | None = None


def normal(*shape: int) -> Draw:
    """Return a maker of normal numbers, `(N, *shape)`."""
    return lambda generator: torch.randn(SAMPLES, *shape, generator=generator)


def below(most: int, *shape: int) -> Draw:
    """Return a maker of whole numbers below a bound, `(N, *shape)`."""
    return lambda generator: torch.randint(0, most, (SAMPLES, *shape), generator=generator)


def named(**draws: Draw) -> MakeBatch:
    """Return a maker of inputs by name."""
    return lambda generator: {name: draw(generator) for name, draw in draws.items()}


def labelled(draw: Draw) -> MakeBatch:
    """Return a maker of inputs and classes."""
    return lambda generator: (draw(generator), below(CLASSES)(generator))


def images(*size: int, channels: int = 3) -> MakeBatch:
    """Return a maker of labelled images, `(N, channels, *size)`; a single size means a square."""
    return labelled(normal(channels, *(size * 2 if len(size) == 1 else size)))


def outputs(model: nn.Module, batch: Any) -> list[Tensor]:
    """Return all output tensors of a network for a batch."""
    found = call(model, as_inputs(without_labels(batch)))
    return [leaf for leaf in tree_leaves(_plain(found)) if isinstance(leaf, Tensor)]


def squares(model: nn.Module, batch: Any) -> Tensor:
    """Return a loss for any network: the mean square of each floating-point output, summed."""
    found = [output for output in outputs(model, batch) if output.is_floating_point() and output.numel()]
    return torch.stack([output.square().mean() for output in found]).sum()


def _plain(output: Any) -> Any:
    """Return outputs of transformers as dictionaries, without caches, which pytrees cannot flatten."""
    if hasattr(output, "to_tuple"):
        return {name: value for name, value in output.items() if name not in CACHES}
    return output
