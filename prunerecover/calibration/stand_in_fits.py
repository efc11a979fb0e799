"""Replacements fitted by least squares.

A block returns a stream of the input's shape, and the update is largely linear in the stream, across channels at each
position: an affine map, shrunk towards the identity, the result without a fit. A branch adds to a stream: a constant
(the mean output), or an affine map of the input, shrunk towards zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.calibration.places import Fit, FitPlace, family_places
from prunerecover.calibration.regression import AffineRegression, ChannelRegression
from prunerecover.calibration.token_weights import row_weights
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.copies import share_copy
from prunerecover.model.hooks import Reached, first_tensor, removed_after, until_reached
from prunerecover.model.paths import get_module
from prunerecover.plan.edit_parts import FITTED_STAND_INS
from prunerecover.plan.edits import PARAMETERS, Bypass, Edit, Replace
from prunerecover.surgery.apply_edits import apply_edits

MOST_NUMBERS = 1 << 27  # entries of second moments: 1 GiB each for inputs, and for products of inputs and outputs
ROWS = 60  # largest number of positions per channel and batch


class PlaceWeights:
    """Weights of the rows at places in supported families; other places have none, and equal weights.

    Args:
        model: Dense, in evaluation mode.
        places: Places.
        batches: Calibration samples on the model's device.
        seed: Seed of the labels drawn from the model's predictions.
    """

    def __init__(
        self, model: nn.Module, places: Sequence[FitPlace], batches: Sequence[ModelInputs], seed: int = 0
    ) -> None:
        given = {place.gives for place in places if not place.modules}
        calls = FrontToBack(model, batches).calls if given else {}
        paths = [path for path, times in calls.items() if path in given and times == 1]
        self._weights = dict(zip(paths, row_weights(model, paths, batches, seed), strict=True)) if paths else {}

    def of(self, place: FitPlace, number: int) -> Tensor | None:
        """Return the weights of a place's rows in a batch."""
        return self._weights[place.gives].of(number) if place.gives in self._weights else None


@dataclass
class _Sums:
    """Regression of a unit's output on the replacement's input."""

    place: FitPlace
    affine: AffineRegression = field(default_factory=AffineRegression)
    scale: ChannelRegression = field(default_factory=ChannelRegression)
    alike: bool = True  # the shapes of both

    def add(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        self.alike = self.alike and x.shape == y.shape
        x = x if self.alike else torch.zeros_like(y)
        rows, targets = (t.detach().movedim(self.place.dim, -1).flatten(0, -2) for t in (x, y))
        step = max(1, len(rows) // (ROWS * self.place.channels))
        known = weight is not None and weight.numel() == len(rows)
        weight = weight.flatten().to(rows) if weight is not None and known else torch.ones_like(rows[:, 0])
        rows, targets, weight = rows[::step], targets[::step], weight[::step]
        for regression in {self._regression(form) for form, _ in self.place.possible}:
            regression.add(rows, targets, weight)

    def all(self) -> tuple[Fit, ...]:
        """Return the fits of all possible forms."""
        able = {"constant": not self.place.trains}
        return tuple(self.solve(*form) for form in self.place.possible if able.get(form[0], self.alike))

    def solve(self, leaves: str, ridge: float) -> Fit:
        """Return the fit of a form."""
        place, regression = self.place, self._regression(leaves)
        if isinstance(regression, ChannelRegression):
            values = dict(zip(PARAMETERS["slope_bias"], regression.solve(), strict=True))
        else:
            nothing = torch.zeros if place.adds else torch.eye
            prior = nothing(place.channels, place.channels)
            values = dict(zip(PARAMETERS["affine"], regression.solve(ridge, prior), strict=True))
        values = {name: values[name].float() for name in PARAMETERS[leaves]}
        standing = place.modules.get(place.path)
        in_shape = leaves == "constant" and standing is not None and standing.leaves in ("zeros", "constants")
        return Fit(place, "constants" if in_shape else leaves, values, ridge)

    def _regression(self, form: str) -> AffineRegression | ChannelRegression:
        return self.scale if form == "slope_bias" else self.affine


@torch.no_grad()
def fits_alone(
    model: nn.Module, places: Sequence[FitPlace], batches: Sequence[ModelInputs], weights: PlaceWeights | None = None
) -> dict[str, tuple[Fit, ...]]:
    """Return all possible replacements of each unit removed alone, by unit name; computed in few passes.

    Args:
        model: Dense, in evaluation mode.
        places: Locations of replacements.
        batches: Calibration samples on the model's device.
        weights: Weights of rows; None: equal weights.
    """
    if len(places) > 1 and sum(place.channels**2 for place in places) > MOST_NUMBERS:
        half = len(places) // 2
        first, second = (fits_alone(model, own, batches, weights) for own in (places[:half], places[half:]))
        return {unit: (*first.get(unit, ()), *second.get(unit, ())) for unit in first | second}
    sums = [_Sums(place) for place in places]
    apart = {place.unit: share_copy(model).eval() for place in places if not place.entry}
    paths = {place.unit: place.path for place in places if not place.entry}
    for place in places:
        if place.unit in apart:
            apply_edits(apart[place.unit], [place.bypass()])
    for number, batch in enumerate(batches):
        read = {unit: _read_at(network, paths[unit], batch) for unit, network in apart.items()}
        with ExitStack() as stack:
            for own in sums:
                weight = weights.of(own.place, number) if weights else None
                stack.enter_context(_added(model, own, read.get(own.place.unit), weight))
            call(model, batch)
    found: dict[str, tuple[Fit, ...]] = {}
    for own in sums:
        found[own.place.unit] = (*found.get(own.place.unit, ()), *own.all())
    return found


@contextmanager
def _added(model: nn.Module, sums: _Sums, read: Tensor | None, weight: Tensor | None) -> Iterator[None]:
    """Add the dense unit's outputs, and the replacement's inputs, in passes inside a `with` block.

    Args:
        model: Dense.
        sums: Sums to add to.
        read: Input of the replacement; None: the input of the location's entry.
        weight: Weights of the rows; None: equal weights.
    """
    before = [] if read is None else [read]

    def enter(_: Any, args: Any, kwargs: Any) -> None:
        before[:] = [first_tensor(args, kwargs).clone()]  # the unit may overwrite it

    def leave(_: Any, __: Any, output: Any) -> None:
        sums.add(before[0], output[0] if isinstance(output, tuple) else output, weight)

    place, handles = sums.place, []
    if read is None:
        handles = [get_module(model, place.entry).register_forward_pre_hook(enter, with_kwargs=True)]
    with removed_after(*handles, get_module(model, place.gives).register_forward_hook(leave)):
        yield


def _read_at(network: nn.Module, path: str, batch: ModelInputs) -> Tensor:
    """Return a copy of the first tensor in a module's input, and end the pass there."""
    found: list[Tensor] = []

    def enter(_: Any, args: Any, kwargs: Any) -> None:
        found.append(first_tensor(args, kwargs).clone())
        raise Reached

    with until_reached(get_module(network, path).register_forward_pre_hook(enter, with_kwargs=True)):
        call(network, batch)
    return found[0]


@torch.no_grad()
def refit_in_order(
    model: nn.Module,
    edits: Sequence[Edit],
    batches: Sequence[ModelInputs],
    ridges: Mapping[str, float] | None = None,
    weights: PlaceWeights | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    kept: Mapping[str, Tensor] | None = None,
    around: Callable[[nn.Module], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> dict[str, Fit]:
    """Refit replacements in order of execution: from the input behind earlier replacements, to the dense output.

    Args:
        model: Dense, in evaluation mode; not changed.
        edits: All edits of a plan, fitted replacements included; paths of modules stay the same.
        batches: Calibration samples on the model's device.
        ridges: Strength of the ridge, by unit; None: the least.
        weights: Weights of rows; None: equal weights.
        tensors: Tensors of the edits, where other edits than replacements have any.
        kept: Numbers of the remaining channels, by unit with narrowed channels.
        around: Context of passes through a network, such as one in which BatchNorm normalises by the batch, where
            narrowed layers made its statistics wrong.

    Returns:
        The fits, by unit name.
    """
    pruned = share_copy(model)
    apply_edits(pruned, edits, tensors)
    passes, dense = FrontToBack(pruned, batches), FrontToBack(model, batches)
    replacing = (edit for edit in edits if isinstance(edit, Bypass | Replace))
    fitted = {edit.unit: edit for edit in replacing if edit.leaves in FITTED_STAND_INS}
    places = {place.path: place for place in (_place_in(model, edit, dense) for edit in fitted.values())}
    found: dict[str, Fit] = {}
    for place in (places[path] for path in dense.calls if path in places):
        path, sums, own = place.path, _Sums(place), (kept or {}).get(place.unit)
        for number, batch in enumerate(batches):
            weight = weights.of(place, number) if weights else None
            with around(pruned), around(model):
                behind = _behind(place, passes, dense, batch)
                seen = zip(passes.seen_at(path, batch), dense.seen_at(place.gives, batch), strict=False)
            for (x, _), (_, y) in seen:
                y = y + behind if behind is not None and behind.shape == y.shape else y
                sums.add(x, y if own is None else y.index_select(place.dim, own.to(y.device)), weight)
        leaves = fitted[place.unit].leaves
        ridge = dict(reversed(place.possible))[leaves] if ridges is None else ridges[place.unit]
        fit = found[place.unit] = sums.solve(leaves, ridge)
        for name, value in fit.values.items():
            get_module(pruned, path).get_parameter(name).copy_(value)
    return found


def _behind(place: FitPlace, passes: FrontToBack, dense: FrontToBack, batch: ModelInputs) -> Tensor | None:
    """Return the part of the dense stream that the pruned stream misses, for the output to make up for."""
    if not place.stream:
        return None
    ((now, _), *_), ((wanted, _), *_) = (own.seen_at(place.stream, batch) for own in (passes, dense))
    return (wanted - now) / place.scale if wanted.shape == now.shape else None


def _place_in(model: nn.Module, edit: Bypass | Replace, dense: FrontToBack) -> FitPlace:
    """Return the location of an edit's fitted replacement, from passes of the dense network."""
    if isinstance(edit, Replace):
        return next(p for p in family_places(model, edit.unit) if edit.leaves in [form for form, _ in p.possible])
    path, one = next((path, one) for path, one in edit.modules.items() if one.leaves in FITTED_STAND_INS)
    gives = [own for own in dense.calls if own in edit.modules][-1]
    return FitPlace(edit.unit, edit.kind, path, gives, one.dim, one.channels, edit.modules)
