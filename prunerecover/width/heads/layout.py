"""Places of queries, keys, values and their reader in an attention's tensors, and linear maps of heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prunerecover.model.paths import parent_path
from prunerecover.plan.groups import Group, Slice


@dataclass(frozen=True)
class HeadLayout:
    """Entries of every head: an offset per head, with `size` indices from there on.

    Attributes:
        size: Dimensions of a head.
        weights: Weights of queries, keys and values, in order. Queries and keys are interchangeable in attention.
        biases: Biases of queries, keys and values, or None.
        output: Weight that reads heads.
    """

    size: int
    weights: tuple[Slice, ...]
    biases: tuple[Slice | None, ...]
    output: Slice

    @classmethod
    def of(cls, group: Group) -> HeadLayout:
        """Return the layout of a group of kind "head_dim", with its tensors in the order of `slices`."""
        output = next(part for part in group.slices if not part.makes)
        made = _per_matrix([part for part in group.slices if part.makes], len(output.offsets))
        by_place = {(parent_path(part.tensor), part.offsets): part for part in made[3:]}
        biases = tuple(by_place.get((parent_path(part.tensor), part.offsets)) for part in made[:3])
        return cls(group.size, tuple(made[:3]), biases, output)

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.output.offsets)

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Entries of a group: one slice per tensor, queries before keys before values, weights before biases."""
        offsets: dict[str, tuple[int, ...]] = {}
        parts = (*self.weights, *filter(None, self.biases), self.output)
        for part in parts:
            offsets[part.tensor] = (*offsets.get(part.tensor, ()), *part.offsets)
        first = {part.tensor: part for part in reversed(parts)}
        return tuple(first[path].model_copy(update={"offsets": found}) for path, found in offsets.items())

    def orders(self) -> Iterator[HeadLayout]:
        """Yield the layout, and the two layouts with another weight as the weight of values."""
        for order in ((0, 1, 2), (0, 2, 1), (1, 2, 0)):
            weights = tuple(self.weights[i] for i in order)
            yield replace(self, weights=weights, biases=tuple(self.biases[i] for i in order))

    def inside(self, path: str) -> HeadLayout:
        """Return the layout with tensor names relative to the module at a path around all tensors."""
        before = len(path) + 1 if path else 0

        def own(part: Slice) -> Slice:
            return part.model_copy(update={"tensor": part.tensor[before:]})

        biases = tuple(part and own(part) for part in self.biases)
        return replace(self, weights=tuple(map(own, self.weights)), biases=biases, output=own(self.output))

    def made(self) -> Iterator[tuple[Slice, Slice | None]]:
        """Yield the weight and the bias of queries, keys and values."""
        yield from zip(self.weights, self.biases, strict=True)


def _per_matrix(parts: Sequence[Slice], heads: int) -> list[Slice]:
    """Return a slice for each of queries, keys and values, which may share a tensor."""
    return [
        part.model_copy(update={"offsets": part.offsets[begin : begin + heads]})
        for part in parts
        for begin in range(0, len(part.offsets), heads)
    ]


def entries_of(tensor: Tensor, part: Slice, size: int, heads: Sequence[int] | None = None) -> Tensor:
    """Return the entries of heads in a tensor, `(heads, size, ...)`.

    Args:
        tensor: Tensor of the layout.
        part: Entries of the heads in the tensor.
        size: Dimensions of a head.
        heads: Numbers of heads; None: all.

    >>> part = Slice(tensor="q.weight", dim=0, offsets=(0, 2))
    >>> entries_of(torch.arange(4.0)[:, None], part, 2, [1])
    tensor([[[2.],
             [3.]]])
    """
    return tensor.movedim(part.dim, 0)[_indices(part, size, heads).to(tensor.device)]


def with_entries(tensor: Tensor, part: Slice, values: Tensor, heads: Sequence[int] | None = None) -> Tensor:
    """Return a copy of a tensor with new entries in the first dimensions of heads.

    Args:
        tensor: Tensor of the layout.
        part: Entries of the heads in the tensor.
        values: New entries, `(heads, dimensions, ...)`, as of `entries_of`.
        heads: Numbers of heads; None: all.
    """
    new = tensor.detach().clone()
    new.movedim(part.dim, 0)[_indices(part, values.shape[1], heads).to(new.device)] = values.to(new)
    return new


def _indices(part: Slice, size: int, heads: Sequence[int] | None) -> Tensor:
    offsets = part.offsets if heads is None else [part.offsets[head] for head in heads]
    return torch.tensor(offsets)[:, None] + torch.arange(size)


def mapped(entries: Tensor, maps: Tensor) -> Tensor:
    """Return linear maps of heads: `(heads, new, size)` of `(heads, size, ...)`, `(heads, new, ...)`.

    >>> mapped(torch.ones(1, 2, 3), torch.tensor([[[1.0, 2.0]]]))
    tensor([[[3., 3., 3.]]])
    """
    return torch.einsum("hnd,hd...->hn...", maps, entries)
