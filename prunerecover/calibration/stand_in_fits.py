"""Replacements fitted by least squares for units found in the graph alone.

A block returns a stream of the input's shape, and the update is largely linear in the stream, across channels at each
position: an affine map, shrunk towards the identity, the result without a fit. A branch adds to a stream: a constant
(the mean output), or an affine map of the input, shrunk towards zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.calibration.regression import AffineRegression, ChannelRegression
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.copies import share_copy
from prunerecover.model.hooks import Reached, first_tensor, removed_after, until_reached
from prunerecover.model.paths import get_module, is_within
from prunerecover.plan.edit_parts import FITTED_STAND_INS, StandIn
from prunerecover.plan.edits import PARAMETERS, Bypass, Edit, Narrow
from prunerecover.plan.kinds import Kind
from prunerecover.surgery.apply_edits import apply_edits

RIDGES = (0.01, 0.3)  # relative to the mean variance of the channels
MOST_NUMBERS = 1 << 27  # entries of second moments: 1 GiB each for inputs, and for products of inputs and outputs
BRANCHES = ("attention", "mlp")
FORMS = {  # forms and ridge strengths, cheapest first
    "block": (("affine", RIDGES[0]), ("affine", RIDGES[1])),
    **dict.fromkeys(BRANCHES, (("constant", inf), ("affine", RIDGES[0]), ("affine", RIDGES[1]))),
    "activation": (("slope_bias", 0.0),),
    "layer": (("slope_bias", 0.0), ("affine", RIDGES[0]), ("affine", RIDGES[1])),
}
ROWS = 60  # largest number of positions per channel and batch


@dataclass(frozen=True)
class FitPlace:
    """Location of a fitted replacement.

    Attributes:
        unit: Name of the unit.
        kind: Kind of the unit.
        path: Path of the module to replace: the unit itself, or the module whose output a branch adds.
        gives: Path of the module with the unit's output: `path`, or the last module that serves a layer.
        dim: Channel dimension of the output, 1 or -1.
        channels: Number of channels.
        modules: Replacement of each module without a fit, by path.
        entry: Path of the module with the same input as the replacement; empty if code in between changes the input.
        positions: Number of positions in a sample.
        trains: Whether code with weights computes the replacement's input; behind a constant, the weights would have no
            gradient.
    """

    unit: str
    kind: Kind
    path: str
    gives: str
    dim: int
    channels: int
    modules: Mapping[str, StandIn] = field(hash=False)
    entry: str = ""
    positions: int = 1
    trains: bool = False

    def bypass(self) -> Bypass:
        """Return the edit that removes the unit without a fit."""
        return Bypass(unit=self.unit, kind=self.kind, modules=dict(self.modules))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted stand-in.

    Attributes:
        place: Unit and location.
        leaves: Form of the replacement, as of `StandIn`.
        values: Parameters by name.
        ridge: Ridge strength of the fit.
    """

    place: FitPlace
    leaves: str
    values: Mapping[str, Tensor]
    ridge: float

    def standing_in(self, edit: Bypass) -> Bypass:
        """Return the edit that removes the unit with the replacement, from the edit without."""
        place = self.place
        returns = edit.modules[place.path].returns
        own = StandIn(leaves=self.leaves, returns=returns, dim=place.dim, channels=place.channels)  # type: ignore[arg-type]
        modules = {**edit.modules, place.path: own}
        return edit.model_copy(update={"modules": modules, "tensors": tuple(self.tensors)})

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Parameters by key in the edit."""
        return {f"{self.place.unit}.{name}": value for name, value in self.values.items()}

    @property
    def macs(self) -> int:
        """MACs of the replacement for a single sample."""
        return self.place.positions * self.place.channels**2 if self.leaves == "affine" else 0


def tensors_of(edits: Sequence[Edit], fits: Mapping[str, Fit]) -> dict[str, Tensor]:
    """Return the tensors named in edits, from fits by unit name."""
    named = {key for edit in edits if isinstance(edit, Bypass) for key in edit.tensors}
    return {key: value for one in fits.values() for key, value in one.tensors.items() if key in named}


def numbered(edits: Sequence[Edit], fits: Mapping[str, Fit]) -> tuple[tuple[Edit, ...], dict[str, Tensor]]:
    """Return edits with tensor keys by the number of the edit, as in plans, and the tensors."""
    found, tensors = list[Edit](), dict[str, Tensor]()
    for number, edit in enumerate(edits):
        if isinstance(edit, Bypass) and edit.tensors:
            own = fits[edit.unit].tensors
            keys = {f"e{number}.{key.rpartition('.')[2]}": key for key in edit.tensors}
            tensors |= {new: own[old].cpu() for new, old in keys.items()}
            edit = edit.model_copy(update={"tensors": tuple(keys)})
        found.append(edit)
    return tuple(found), tensors


@dataclass
class _Sums:
    """Regression of a unit's output on the replacement's input."""

    place: FitPlace
    affine: AffineRegression = field(default_factory=AffineRegression)
    scale: ChannelRegression = field(default_factory=ChannelRegression)
    alike: bool = True  # the shapes of both

    def add(self, x: Tensor, y: Tensor) -> None:
        self.alike = self.alike and x.shape == y.shape
        x = x if self.alike else torch.zeros_like(y)
        rows, targets = (t.detach().movedim(self.place.dim, -1).flatten(0, -2) for t in (x, y))
        step = max(1, len(rows) // (ROWS * self.place.channels))
        rows, targets = rows[::step], targets[::step]
        for regression in {self._regression(form) for form, _ in FORMS[self.place.kind]}:
            regression.add(rows, targets, torch.ones_like(rows[:, 0]))

    def all(self) -> tuple[Fit, ...]:
        """Return the fits of all possible forms."""
        able = {"constant": not self.place.trains}
        return tuple(self.solve(*form) for form in FORMS[self.place.kind] if able.get(form[0], self.alike))

    def solve(self, leaves: str, ridge: float) -> Fit:
        """Return the fit of a form."""
        place, regression = self.place, self._regression(leaves)
        if isinstance(regression, ChannelRegression):
            values = dict(zip(PARAMETERS["slope_bias"], regression.solve(), strict=True))
        else:
            nothing = torch.zeros if place.kind in BRANCHES else torch.eye
            prior = nothing(place.channels, place.channels)
            values = dict(zip(PARAMETERS["affine"], regression.solve(ridge, prior), strict=True))
        values = {name: values[name].float() for name in PARAMETERS[leaves]}
        in_shape = leaves == "constant" and place.modules[place.path].leaves in ("zeros", "constants")
        return Fit(place, "constants" if in_shape else leaves, values, ridge)

    def _regression(self, form: str) -> AffineRegression | ChannelRegression:
        return self.scale if form == "slope_bias" else self.affine


@torch.no_grad()
def fits_alone(
    model: nn.Module, places: Sequence[FitPlace], batches: Sequence[ModelInputs]
) -> dict[str, tuple[Fit, ...]]:
    """Return all possible replacements of each unit removed alone, by unit name; computed in few passes.

    Args:
        model: Dense, in evaluation mode.
        places: Locations of replacements.
        batches: Calibration samples on the model's device.
    """
    if len(places) > 1 and sum(place.channels**2 for place in places) > MOST_NUMBERS:
        half = len(places) // 2
        return fits_alone(model, places[:half], batches) | fits_alone(model, places[half:], batches)
    sums = {place.unit: _Sums(place) for place in places}
    apart = {place.unit: share_copy(model).eval() for place in places if not place.entry}
    for place in places:
        if place.unit in apart:
            apply_edits(apart[place.unit], [place.bypass()])
    for batch in batches:
        read = {
            own.place.unit: _read_at(apart[unit], own.place.path, batch) for unit, own in sums.items() if unit in apart
        }
        with ExitStack() as stack:
            for unit, own in sums.items():
                stack.enter_context(_added(model, own, read.get(unit)))
            call(model, batch)
    return {unit: own.all() for unit, own in sums.items()}


@contextmanager
def _added(model: nn.Module, sums: _Sums, read: Tensor | None) -> Iterator[None]:
    """Add the dense unit's outputs, and the replacement's inputs, in passes inside a `with` block.

    Args:
        model: Dense.
        sums: Sums to add to.
        read: Input of the replacement; None: the input of the location's entry.
    """
    before = [] if read is None else [read]

    def enter(_: Any, args: Any, kwargs: Any) -> None:
        before[:] = [first_tensor(args, kwargs).clone()]  # the unit may overwrite it

    def leave(_: Any, __: Any, output: Any) -> None:
        sums.add(before[0], output[0] if isinstance(output, tuple) else output)

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
    model: nn.Module, edits: Sequence[Edit], batches: Sequence[ModelInputs], ridges: Mapping[str, float] | None = None
) -> dict[str, Fit]:
    """Refit replacements in order of execution: from the input behind earlier replacements, to the dense output.

    Args:
        model: Dense, in evaluation mode; not changed.
        edits: All edits of a plan, fitted replacements included; paths of modules stay the same.
        batches: Calibration samples on the model's device.
        ridges: Strength of the ridge, by unit; None: the least.

    Returns:
        The fits, by unit name.
    """
    pruned = share_copy(model)
    apply_edits(pruned, edits)
    passes, dense = FrontToBack(pruned, batches), FrontToBack(model, batches)
    fitted = {edit.unit: edit for edit in edits if isinstance(edit, Bypass) and edit.leaves in FITTED_STAND_INS}
    places, found = {place.path: place for place in (_place_in(edit, dense) for edit in fitted.values())}, {}
    for place in (places[path] for path in dense.calls if path in places):
        path, sums = place.path, _Sums(place)
        for batch in batches:
            for (x, _), (_, y) in zip(passes.seen_at(path, batch), dense.seen_at(place.gives, batch), strict=False):
                sums.add(x, y)
        leaves = fitted[place.unit].leaves
        ridge = dict(reversed(FORMS[place.kind]))[leaves] if ridges is None else ridges[place.unit]
        fit = found[place.unit] = sums.solve(leaves, ridge)
        for name, value in fit.values.items():
            get_module(pruned, path).get_parameter(name).copy_(value)
    return found


def _place_in(edit: Bypass, dense: FrontToBack) -> FitPlace:
    """Return the location of an edit's fitted replacement, from passes of the dense network."""
    path, one = next((path, one) for path, one in edit.modules.items() if one.leaves in FITTED_STAND_INS)
    gives = [own for own in dense.calls if own in edit.modules][-1]
    return FitPlace(edit.unit, edit.kind, path, gives, one.dim, one.channels, edit.modules)


def with_fit(edit: Edit, fits: Mapping[str, Fit], others: Sequence[Edit]) -> Edit:
    """Return an edit with the unit's fitted replacement; the same edit where none fits.

    Args:
        edit: The edit.
        fits: Fits by unit name.
        others: Edits of layers, which may change the widths of the fit.
    """
    if not isinstance(edit, Bypass) or edit.unit not in fits:
        return edit
    narrowed = [part.tensor for other in others if isinstance(other, Narrow) for part in other.group]
    alone = edit.kind in ("activation", "layer") and narrowed
    if alone or any(is_within(tensor, path) for tensor in narrowed for path in edit.modules):
        return edit
    return fits[edit.unit].standing_in(edit)
