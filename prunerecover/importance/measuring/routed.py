"""Calls of routed experts: the router's choice for a batch, read at the input of the module of the fused experts.

A token visits a few experts and takes the sum of their outputs, each times a routing weight. A gate on an expert is a
gate on its routing weights, one per sample: the gradient is the sum over the sample's tokens of w dL/dw, equal to the
sum of o dL/do, with o the expert's weighted output.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Routed:
    """A call of fused experts.

    Attributes:
        experts: Module of the experts.
        call: Arguments of the call.
        hidden: Name of the argument with the tokens, `(tokens, C)`.
        index: Name of the argument with the chosen experts of each token, `(tokens, k)`.
        weights: Name of the argument with the routing weights, `(tokens, k)`.
        size: Number of experts.
        samples: Number of samples, with equally many tokens each, sample by sample.
        padding: Mask of the padding tokens, `(tokens,)`.
    """

    experts: nn.Module
    call: inspect.BoundArguments
    hidden: str
    index: str
    weights: str
    size: int
    samples: int
    padding: Tensor

    @property
    def chosen_weights(self) -> Tensor:
        """Routing weights of the chosen experts of each token, `(tokens, k)`."""
        weights: Tensor = self.call.arguments[self.weights]
        return weights

    @property
    def sample_of(self) -> Tensor:
        """Number of each token's sample, `(tokens,)`."""
        tokens = self.padding.numel()
        return torch.arange(tokens, device=self.padding.device) // (tokens // self.samples)

    def gated(self, gate: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with `(samples, size)` factors on the outputs of the experts."""
        index = self.call.arguments[self.index]
        return self._with({self.weights: self.chosen_weights * gate[self.sample_of[:, None], index]})

    def normalised(self) -> Routed:
        """Return the call with routing weights that add up to one for each token."""
        weights = self.chosen_weights / self.chosen_weights.sum(1, keepdim=True)
        return replace(self, call=self._changed({self.weights: weights}))

    def visits(self) -> Tensor:
        """Count the tokens routed to each expert, padding left out: `(size,)`."""
        return torch.bincount(self.call.arguments[self.index][~self.padding].flatten(), minlength=self.size)

    @torch.no_grad()
    def means(self, part_of: Tensor, parts: int, directions: Tensor) -> Tensor:
        """Average each expert's weighted output over parts of the tokens; zero for tokens not routed to the expert.

        Args:
            part_of: Numbers of parts, `(tokens,)`, -1 for none; padding is in none.
            parts: Number of parts.
            directions: Directions to project on, `(C, D)`.

        Returns:
            `(parts, size, D)`.
        """
        index = self.call.arguments[self.index]
        part_of = torch.where(self.padding, -1, part_of.to(index.device))
        inside = part_of >= 0
        sums = torch.zeros(parts * self.size, directions.shape[1], device=index.device)
        for expert, added in self._added():
            projected = added @ directions.to(index.device)
            sums.index_add_(0, (part_of * self.size + expert)[inside], projected[inside])
        counts = torch.bincount(part_of[inside], minlength=parts).clamp(min=1)
        return sums.view(parts, self.size, -1) / counts[:, None, None]

    @torch.no_grad()
    def norms(self) -> Tensor:
        """Sum the norms of each expert's weighted output over its tokens, padding left out: `(size,)`."""
        sums = torch.zeros(self.size, dtype=torch.float64, device=self.padding.device)
        for expert, added in self._added():
            sums.index_add_(0, expert[~self.padding], added.norm(dim=1).double()[~self.padding])
        return sums

    def _added(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each token's first expert, `(tokens,)`, with its weighted output, `(tokens, C)`; then the second."""
        for k in range(self.call.arguments[self.index].shape[1]):
            one = {name: self.call.arguments[name][:, k : k + 1] for name in (self.index, self.weights)}
            args, kwargs = self._with(one)
            yield one[self.index][:, 0], self.experts.forward(*args, **kwargs).float()

    @property
    def width(self) -> int:
        """Length `C` of an expert's output."""
        return int(self.call.arguments[self.hidden].shape[-1])

    def _with(self, changes: dict[str, Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        call = self._changed(changes)
        return call.args, call.kwargs

    def _changed(self, changes: dict[str, Tensor]) -> inspect.BoundArguments:
        return inspect.BoundArguments(self.call.signature, OrderedDict({**self.call.arguments, **changes}))


def read_call(
    path: str, experts: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], size: int, samples: int
) -> Routed:
    """Tell the arguments of fused experts apart; no padding is marked.

    Args:
        path: Path of the experts, for messages.
        experts: Module of the fused experts.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        size: Number of experts.
        samples: Samples in the batch.

    Raises:
        ValueError: If tokens, integer choices and weights of the choices' shape are not among the arguments.
    """
    call = inspect.signature(experts.forward).bind(*args, **kwargs)
    tensors = {name: value for name, value in call.arguments.items() if isinstance(value, Tensor)}
    floating = [name for name, value in tensors.items() if value.is_floating_point()]
    index = next((name for name, value in tensors.items() if not value.is_floating_point()), None)
    shape = () if index is None else tensors[index].shape
    weights = next((name for name in floating[1:] if tensors[name].shape == shape), None)
    if index is None or weights is None or len(shape) != 2 or shape[0] % samples:
        found = ", ".join(f"{name} {tuple(value.shape)}" for name, value in tensors.items())
        raise ValueError(
            f"Expected '{path}' to be called with tokens, the experts that each of them visits and their weights, "
            f"for {samples} samples, but got {found or 'no tensors'}. Leave these experts out."
        )
    padding = torch.zeros(shape[0], dtype=torch.bool, device=tensors[index].device)
    return Routed(experts, call, floating[0], index, weights, size, samples, padding)
