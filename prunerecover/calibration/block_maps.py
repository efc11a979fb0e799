"""Affine maps that stand in for whole blocks of any network, fitted to what the blocks give.

A block hands on a stream of one shape. What it adds is in good part a linear function of the stream, mixed over
channels at each position. The map is shrunk towards the identity, which is all that is left of a block otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.calibration.regression import AffineRegression
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.copies import share_copy
from prunerecover.model.hooks import first_tensor, removed_after
from prunerecover.model.paths import get_module
from prunerecover.plan.edit_parts import StandIn
from prunerecover.plan.edits import Bypass, Edit
from prunerecover.surgery.apply_edits import apply_edits

RIDGES = (0.01, 0.3)  # relative to the mean variance of the channels
ROWS = 60  # positions that are taken per channel and batch of samples, at most


@dataclass(frozen=True)
class MapPlace:
    """A block that a map can stand in for.

    Attributes:
        path: Path of the block.
        dim: Dimension of the channels in its first input and output, 1 or -1.
        channels: Their number.
    """

    path: str
    dim: int
    channels: int


@dataclass(frozen=True, eq=False)
class BlockMap:
    """A fitted map.

    Attributes:
        place: Block that it stands in for.
        weight: `(C, C)`.
        bias: `(C,)`.
        ridge: Strength of the fit's ridge.
    """

    place: MapPlace
    weight: Tensor
    bias: Tensor
    ridge: float

    def edit(self, returns: int) -> Bypass:
        """Return the edit that puts it in the block's place.

        Args:
            returns: Number of values that the block returns, as of `StandIn`.
        """
        path = self.place.path
        leaves = StandIn(leaves="affine", returns=returns, dim=self.place.dim, channels=self.place.channels)
        return Bypass(unit=path, kind="block", modules={path: leaves}, tensors=tuple(self.tensors))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Weight and bias by the keys that the edit gives them."""
        return {f"{self.place.path}.weight": self.weight, f"{self.place.path}.bias": self.bias}


def tensors_of(edits: Sequence[Edit], maps: Mapping[str, BlockMap]) -> dict[str, Tensor]:
    """Return the tensors that edits name, of maps by the paths of their blocks."""
    named = {key for edit in edits if isinstance(edit, Bypass) for key in edit.tensors}
    return {key: value for one in maps.values() for key, value in one.tensors.items() if key in named}


def numbered(edits: Sequence[Edit], maps: Mapping[str, BlockMap]) -> tuple[tuple[Edit, ...], dict[str, Tensor]]:
    """Return edits that name the tensors of maps as plans do, by the number of the edit, with these tensors."""
    found, tensors = list[Edit](), dict[str, Tensor]()
    for number, edit in enumerate(edits):
        if isinstance(edit, Bypass) and edit.tensors:
            own = maps[edit.unit].tensors
            keys = {f"e{number}.{key.rpartition('.')[2]}": key for key in edit.tensors}
            tensors |= {new: own[old].cpu() for new, old in keys.items()}
            edit = edit.model_copy(update={"tensors": tuple(keys)})
        found.append(edit)
    return tuple(found), tensors


@dataclass
class _Sums:
    """Regression of a block's output on its input."""

    place: MapPlace
    regression: AffineRegression = field(default_factory=AffineRegression)

    def add(self, x: Tensor, y: Tensor) -> None:
        rows, targets = (t.detach().movedim(self.place.dim, -1).flatten(0, -2) for t in (x, y))
        step = max(1, len(rows) // (ROWS * self.place.channels))
        self.regression.add(rows[::step], targets[::step], torch.ones_like(rows[::step, 0]))

    def solve(self, ridge: float) -> BlockMap:
        weight, bias = self.regression.solve(ridge, torch.eye(self.place.channels))
        return BlockMap(self.place, weight.float(), bias.float(), ridge)


@torch.no_grad()
def maps_alone(
    model: nn.Module, places: Sequence[MapPlace], batches: Sequence[ModelInputs]
) -> dict[str, tuple[BlockMap, ...]]:
    """Return a map of each ridge for each block, by its path, each fitted on the dense network in one pass over all.

    Args:
        model: Dense, in evaluation mode.
        places: Blocks.
        batches: Calibration samples on the model's device.
    """
    sums = {place.path: _Sums(place) for place in places}
    with ExitStack() as stack:
        for path, own in sums.items():
            before: list[Tensor] = []
            module = get_module(model, path)

            def enter(_: Any, args: Any, kwargs: Any, kept: list[Tensor] = before) -> None:
                kept[:] = [first_tensor(args, kwargs).clone()]  # the block may overwrite it

            def leave(_: Any, __: Any, output: Any, own: _Sums = own, kept: list[Tensor] = before) -> None:
                own.add(kept[0], output[0] if isinstance(output, tuple) else output)

            stack.enter_context(removed_after(module.register_forward_pre_hook(enter, with_kwargs=True)))
            stack.enter_context(removed_after(module.register_forward_hook(leave)))
        for batch in batches:
            call(model, batch)
    return {path: tuple(own.solve(ridge) for ridge in RIDGES) for path, own in sums.items()}


@torch.no_grad()
def refit_in_order(
    model: nn.Module, edits: Sequence[Edit], batches: Sequence[ModelInputs], ridges: Mapping[str, float] | None = None
) -> dict[str, BlockMap]:
    """Fit maps anew in order of execution, each from what enters it behind the others to what the dense block gives.

    Args:
        model: Dense, in evaluation mode; not changed.
        edits: All that goes at once, maps included; paths of blocks stay as they are.
        batches: Calibration samples on the model's device.
        ridges: Strength of the ridge, by path; None: the least.

    Returns:
        The maps, by the paths of their blocks.
    """
    left = [edit.modules.items() for edit in edits if isinstance(edit, Bypass)]
    places = {
        path: MapPlace(path, one.dim, one.channels) for own in left for path, one in own if one.leaves == "affine"
    }
    pruned = share_copy(model)
    apply_edits(pruned, edits)
    passes, dense = FrontToBack(pruned, batches), FrontToBack(model, batches)
    found = {}
    for path in dense.in_order(places):
        sums = _Sums(places[path])
        for batch in batches:
            for (x, _), (_, y) in zip(passes.seen_at(path, batch), dense.seen_at(path, batch), strict=False):
                sums.add(x, y)
        found[path] = sums.solve(RIDGES[0] if ridges is None else ridges[path])
        affine = get_module(pruned, path)
        affine.get_parameter("weight").copy_(found[path].weight)
        affine.get_parameter("bias").copy_(found[path].bias)
    return found
