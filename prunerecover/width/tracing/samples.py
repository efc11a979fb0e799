"""Dimensions of samples in the tensors that modules take and give, as passes of different numbers of samples show them.

Most code keeps samples first. Encoders of sequences may keep them second, `(T, N, C)`, and lay both dimensions in one,
`(T * N, C)`, position by position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.graph.watching import watch
from prunerecover.model.batches import ModelInputs
from prunerecover.model.evaluation import device_of
from prunerecover.plan.groups import Place


@dataclass(frozen=True)
class SampleLayout:
    """The samples in a tensor.

    Attributes:
        dim: Dimension along which they lie.
        apart: Whether rows of one sample lie apart in it, as in `(T * N, C)`; in `(N * T, C)` they are together.
    """

    dim: int = 0
    apart: bool = False


@dataclass
class SeenTensors:
    """Observer of the first tensor that each module takes, and of the first that it gives, in its first call.

    Attributes:
        dims: Dimensions of samples in tensors of which sums along all others are wanted.
        shapes: Shapes of the tensors.
        sums: Sums of absolute values, in double precision.
    """

    dims: Mapping[Place, int] = field(default_factory=dict)
    shapes: dict[Place, tuple[int, ...]] = field(default_factory=dict)
    sums: dict[Place, Tensor] = field(default_factory=dict)

    def enter(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the first tensor that a module takes, by position or by name."""
        given = args[:1] or tuple(value for value in kwargs.values() if isinstance(value, Tensor))
        self._see((path, "input"), *given[:1])

    def leave(self, path: str, module: nn.Module, output: Any) -> None:
        """Note the first tensor that it gives."""
        self._see((path, "output"), *(output[:1] if isinstance(output, tuple) else (output,)))

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Take no note of single operations."""

    def _see(self, place: Place, tensor: Any = None) -> None:
        if not isinstance(tensor, Tensor) or place in self.shapes:
            return
        self.shapes[place] = tuple(tensor.shape)
        if place in self.dims:
            rows = tensor.detach().movedim(self.dims[place], 0).flatten(1)
            self.sums[place] = rows.double().abs().sum(1)


def sample_layouts(model: nn.Module, inputs: ModelInputs) -> dict[Place, SampleLayout]:
    """Return the layout of samples in each tensor that modules take and give.

    A pass of some samples and one of the same samples twice tell their dimension by its size. Where it is not the first
    everywhere, values tell which rows of longer dimensions are whose.

    Args:
        model: Is bit-identical afterwards.
        inputs: One batch, of which a sample or two are run.

    Returns:
        Nothing for a network that takes no other number of samples, or no part of a batch.
    """
    n = min(inputs.n_samples, 2)
    some, twice = (inputs.select(torch.arange(n).repeat(times)) for times in (1, 2))
    try:
        before, after = _seen(model, some, {}).shapes, _seen(model, twice, {}).shapes
    except Exception:  # sizes in its code, or tensors with other rows than samples
        return {}
    places = [place for place, shape in before.items() if len(after.get(place, ())) == len(shape)]
    dims = {place: _first_that_differs(before[place], after[place]) for place in places}
    longer = {place: dim for place, dim in dims.items() if before[place] and before[place][dim] > n}
    mixed = any(dims.values()) and device_of(model).type != "meta"
    apart: set[Place] = set()
    if mixed and longer:
        sums, doubled = _seen(model, some, longer).sums, _seen(model, twice, longer).sums
        apart = {place for place in longer if _is_apart(sums[place], doubled[place], n)}
    return {place: SampleLayout(dim, place in apart) for place, dim in dims.items()}


def _seen(model: nn.Module, inputs: ModelInputs, dims: Mapping[Place, int]) -> SeenTensors:
    seen = SeenTensors(dims)
    watch(model, inputs, seen)
    return seen


def _first_that_differs(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """Return the first dimension whose sizes differ; 0 if none does."""
    return next((dim for dim, sizes in enumerate(zip(before, after, strict=True)) if len(set(sizes)) > 1), 0)


def _is_apart(sums: Tensor, doubled: Tensor, n: int) -> bool:
    """Whether the rows of samples that come twice are doubled position by position, not as a whole."""
    if len(doubled) != 2 * len(sums) or len(sums) % n:
        return False
    together, apart = sums.repeat(2), sums.view(-1, n).repeat(1, 2).flatten()
    return bool((apart - doubled).abs().sum() < (together - doubled).abs().sum())
