"""Dimensions of samples in the tensors of modules, found by passes with different numbers of samples.

Most code keeps samples first. Encoders of sequences may keep samples second, `(T, N, C)`, and flatten both dimensions,
`(T * N, C)`, position by position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from prunerecover.graph.dimensions.watching import Observer
from prunerecover.plan.groups import Place


@dataclass(frozen=True)
class SampleLayout:
    """The samples in a tensor.

    Attributes:
        dim: Dimension of the samples.
        apart: Whether the rows of a sample lie apart, as in `(T * N, C)`; in `(N * T, C)` they are together.
    """

    dim: int = 0
    apart: bool = False


@dataclass
class SeenTensors(Observer):
    """Observer of the first tensor taken and the first tensor returned in each module's first call.

    Attributes:
        dims: Dimensions of samples, by tensor, for tensors with sums.
        shapes: Shapes of the tensors.
        sums: Sums of absolute values along all dimensions but the samples', in double precision.
    """

    dims: Mapping[Place, int] = field(default_factory=dict)
    shapes: dict[Place, tuple[int, ...]] = field(default_factory=dict)
    sums: dict[Place, Tensor] = field(default_factory=dict)

    def enter(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the first tensor that a module takes, by position or by name."""
        given = args[:1] or tuple(value for value in kwargs.values() if isinstance(value, Tensor))
        self._see((path, "input"), *given[:1])

    def leave(self, path: str, module: nn.Module, output: Any) -> None:
        """Note the first tensor that a module returns."""
        self._see((path, "output"), *(output[:1] if isinstance(output, tuple) else (output,)))

    def _see(self, place: Place, tensor: Any = None) -> None:
        if not isinstance(tensor, Tensor) or place in self.shapes:
            return
        self.shapes[place] = tuple(tensor.shape)
        if place in self.dims and tensor.ndim:
            rows = tensor.detach().movedim(self.dims[place], 0).flatten(1)
            self.sums[place] = rows.double().abs().sum(1)


def differing(before: SeenTensors, after: SeenTensors) -> dict[Place, int]:
    """Return the first dimension with different sizes in two passes, by tensor; 0 without a difference.

    Args:
        before: Tensors of a pass.
        after: Tensors of a pass with another number of samples.
    """
    both = ((place, shape, after.shapes.get(place, ())) for place, shape in before.shapes.items())
    return {place: _first_that_differs(*shapes) for place, *shapes in both if len(shapes[0]) == len(shapes[1])}


def lying_apart(once: SeenTensors, twice: SeenTensors, n: int) -> set[Place]:
    """Return the tensors with the rows of a sample apart, among the tensors with sums.

    Args:
        once: Pass of some samples.
        twice: Pass of the same samples, each repeated once.
        n: Number of samples in the first pass.
    """
    both = once.sums.keys() & twice.sums.keys()
    return {place for place in both if _is_apart(once.sums[place], twice.sums[place], n)}


def _first_that_differs(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """Return the first dimension with different sizes; 0 without a difference."""
    return next((dim for dim, sizes in enumerate(zip(before, after, strict=True)) if len(set(sizes)) > 1), 0)


def _is_apart(sums: Tensor, doubled: Tensor, n: int) -> bool:
    """Whether rows of repeated samples are doubled position by position, not as a whole."""
    if len(doubled) != 2 * len(sums) or len(sums) % n:
        return False
    together, apart = sums.repeat(2), sums.view(-1, n).repeat(1, 2).flatten()
    return bool((apart - doubled).abs().sum() < (together - doubled).abs().sum())
