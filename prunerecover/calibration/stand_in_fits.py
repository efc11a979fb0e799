"""Stand-ins of units that only the graph knows, fitted to what the units give.

A block hands on a stream of one shape. What it adds is in good part a linear function of the stream, mixed over
channels at each position: an affine map, shrunk towards the identity, which is all that is left of a block otherwise. A
branch adds to a stream: a constant, the mean of what it adds, or an affine map of what it reads, shrunk towards zero.
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
MOST_NUMBERS = 1 << 27  # of second moments, 1 GiB each of what is read and of what is given with it
BRANCHES = ("attention", "mlp")
FORMS = {  # what costs least first, and how strongly it is shrunk
    "block": (("affine", RIDGES[0]), ("affine", RIDGES[1])),
    **dict.fromkeys(BRANCHES, (("constant", inf), ("affine", RIDGES[0]), ("affine", RIDGES[1]))),
    "activation": (("slope_bias", 0.0),),
    "layer": (("slope_bias", 0.0), ("affine", RIDGES[0]), ("affine", RIDGES[1])),
}
ROWS = 60  # positions that are taken per channel and batch of samples, at most


@dataclass(frozen=True)
class FitPlace:
    """Where something fitted can stand for a unit.

    Attributes:
        unit: Name of the unit.
        kind: Kind of the unit.
        path: Path of the module where it stands: the unit itself, or the one whose output a branch adds.
        gives: Path of the module that gives what the unit gives: the same, or the last one that serves a layer.
        dim: Dimension of the channels in what it gives, 1 or -1.
        channels: Number of channels.
        modules: What takes the place of each module where nothing is fitted.
        entry: Path of the module that reads what a stand-in would read; empty where code in between changes it.
        positions: Number of positions in a sample.
        trains: Whether code with weights of its own makes what a stand-in reads: a constant would leave it no gradient.
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
        """Return the edit that takes the unit out where nothing is fitted."""
        return Bypass(unit=self.unit, kind=self.kind, modules=dict(self.modules))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted stand-in.

    Attributes:
        place: Unit that it stands in for, and where.
        leaves: What it is, as of `StandIn`.
        values: Its parameters, by name.
        ridge: Strength of the ridge that it was fitted with.
    """

    place: FitPlace
    leaves: str
    values: Mapping[str, Tensor]
    ridge: float

    def standing_in(self, edit: Bypass) -> Bypass:
        """Return the edit that takes the unit out with this in its place, given the one without."""
        place = self.place
        returns = edit.modules[place.path].returns
        own = StandIn(leaves=self.leaves, returns=returns, dim=place.dim, channels=place.channels)  # type: ignore[arg-type]
        modules = {**edit.modules, place.path: own}
        return edit.model_copy(update={"modules": modules, "tensors": tuple(self.tensors)})

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its parameters by the keys that the edit gives them."""
        return {f"{self.place.unit}.{name}": value for name, value in self.values.items()}

    @property
    def macs(self) -> int:
        """MACs that it takes, of one sample."""
        return self.place.positions * self.place.channels**2 if self.leaves == "affine" else 0


def tensors_of(edits: Sequence[Edit], fits: Mapping[str, Fit]) -> dict[str, Tensor]:
    """Return the tensors that edits name, of fits by the names of their units."""
    named = {key for edit in edits if isinstance(edit, Bypass) for key in edit.tensors}
    return {key: value for one in fits.values() for key, value in one.tensors.items() if key in named}


def numbered(edits: Sequence[Edit], fits: Mapping[str, Fit]) -> tuple[tuple[Edit, ...], dict[str, Tensor]]:
    """Return edits that name the tensors of fits as plans do, by the number of the edit, with these tensors."""
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
    """Regression of what a unit gives on what a stand-in in its place reads."""

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
        """Solve for everything that may stand there."""
        able = {"constant": not self.place.trains}
        return tuple(self.solve(*form) for form in FORMS[self.place.kind] if able.get(form[0], self.alike))

    def solve(self, leaves: str, ridge: float) -> Fit:
        """Solve for one form."""
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
    """Return all that may stand for each unit, by its name, each fitted as if the unit alone went; in few passes.

    Args:
        model: Dense, in evaluation mode.
        places: Where something may stand.
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
    """Add what a dense unit gives in passes inside a `with` block, and what is read in its place.

    Args:
        model: Dense.
        sums: What it is added to.
        read: What is read; None: what enters the place's entry.
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
    """Return a copy of the first tensor that a module is given, and end the pass there."""
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
    """Fit anew in order of execution, each from what enters it behind the others to what the dense unit gives.

    Args:
        model: Dense, in evaluation mode; not changed.
        edits: All that goes at once, fitted stand-ins included; paths of modules stay as they are.
        batches: Calibration samples on the model's device.
        ridges: Strength of the ridge, by unit; None: the least.

    Returns:
        What was fitted, by the names of units.
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
    """Return where an edit puts something fitted, given passes of the dense network."""
    path, one = next((path, one) for path, one in edit.modules.items() if one.leaves in FITTED_STAND_INS)
    gives = [own for own in dense.calls if own in edit.modules][-1]
    return FitPlace(edit.unit, edit.kind, path, gives, one.dim, one.channels, edit.modules)


def with_fit(edit: Edit, fits: Mapping[str, Fit], others: Sequence[Edit]) -> Edit:
    """Return an edit that takes a unit out with what is fitted in its place; the edit itself where nothing fits.

    Args:
        edit: The edit.
        fits: By unit.
        others: Edits of layers, which may change the widths for which it was fitted.
    """
    if not isinstance(edit, Bypass) or edit.unit not in fits:
        return edit
    narrowed = [part.tensor for other in others if isinstance(other, Narrow) for part in other.group]
    alone = edit.kind in ("activation", "layer") and narrowed
    if alone or any(is_within(tensor, path) for tensor in narrowed for path in edit.modules):
        return edit
    return fits[edit.unit].standing_in(edit)
