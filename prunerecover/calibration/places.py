"""Places of fitted replacements, and fits with the edits that put them there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from torch import Tensor, nn

from prunerecover.families.describe import describe
from prunerecover.families.layout import Block
from prunerecover.model.linears import linear_shape
from prunerecover.model.paths import get_module, is_within
from prunerecover.plan.edit_parts import StandIn
from prunerecover.plan.edits import Bypass, Edit, Narrow, Remove, Replace
from prunerecover.plan.kinds import Kind

RIDGES = (0.01, 0.3)  # relative to the mean variance of the channels
BRANCHES = ("attention", "mlp")
Forms = tuple[tuple[str, float], ...]  # names and ridge strengths
AFFINE: Forms = tuple(("affine", ridge) for ridge in RIDGES)
SLOPES: Forms = (("slope_bias", 0.0),)
FORMS: Mapping[str, Forms] = {  # cheapest first
    "block": AFFINE,
    **dict.fromkeys(BRANCHES, (("constant", inf), *AFFINE)),
    "activation": SLOPES,
    "layer": (*SLOPES, *AFFINE),
}


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
        modules: Replacement of each module without a fit, by path; empty in supported families.
        entry: Path of the module with the same input as the replacement; empty if code in between changes the input.
        positions: Number of positions in a sample.
        trains: Whether code with weights computes the replacement's input; behind a constant, the weights would have no
            gradient.
        forms: Possible forms; empty: the forms of the kind.
        stream: Path of the module whose input is the stream that the output is added to; empty if not known.
        scale: Factor between the output and the stream.
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
    forms: Forms = ()
    stream: str = ""
    scale: float = 1.0

    @property
    def possible(self) -> Forms:
        """Possible forms and ridge strengths, cheapest first."""
        return self.forms or FORMS[self.kind]

    @property
    def adds(self) -> bool:
        """Whether the output is added to a stream: fits shrink to zero then, else to the identity."""
        return self.kind in BRANCHES or not self.modules

    def bypass(self) -> Bypass:
        """Return the edit that removes the unit without a fit."""
        return Bypass(unit=self.unit, kind=self.kind, modules=dict(self.modules))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted replacement.

    Attributes:
        place: Unit and location.
        leaves: Form of the replacement, as of `StandIn` or `Replace`.
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

    def replacing(self) -> Replace:
        """Return the edit that replaces the unit, of a supported family."""
        return Replace(
            unit=self.place.unit,
            kind=self.place.kind,  # type: ignore[arg-type]
            leaves=self.leaves,  # type: ignore[arg-type]
            tensors=tuple(self.tensors),
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Parameters by key in the edit."""
        return {f"{self.place.unit}.{name}": value for name, value in self.values.items()}

    @property
    def macs(self) -> int:
        """MACs of the replacement for a single sample."""
        return self.place.positions * self.place.channels**2 if self.leaves == "affine" else 0


def numbered(edits: Sequence[Edit], tensors: Mapping[str, Tensor]) -> tuple[tuple[Edit, ...], dict[str, Tensor]]:
    """Return edits with tensor keys by the number of the edit, as in plans, and the tensors.

    Args:
        edits: Edits in order.
        tensors: Tensors by the keys in the edits.
    """
    found, named = list[Edit](), dict[str, Tensor]()
    for number, edit in enumerate(edits):
        if keys := getattr(edit, "tensors", ()):
            own = {f"e{number}.{key.rpartition('.')[2]}": key for key in keys}
            named |= {new: tensors[old].float().cpu() for new, old in own.items()}
            edit = edit.model_copy(update={"tensors": tuple(own)})
        found.append(edit)
    return tuple(found), named


def with_fit(edit: Edit, fits: Mapping[str, Fit], others: Sequence[Edit] = ()) -> Edit:
    """Return an edit with the unit's fitted replacement; the same edit where none fits.

    Args:
        edit: The edit.
        fits: Fits by unit name.
        others: Edits of layers, which may change the widths of the fit.
    """
    if isinstance(edit, Remove | Replace) and edit.unit in fits:
        return fits[edit.unit].replacing()
    if not isinstance(edit, Bypass) or edit.unit not in fits:
        return edit
    narrowed = [part.tensor for other in others if isinstance(other, Narrow) for part in other.group]
    alone = edit.kind in ("activation", "layer") and narrowed
    if alone or any(is_within(tensor, path) for tensor in narrowed for path in edit.modules):
        return edit
    return fits[edit.unit].standing_in(edit)


def family_places(model: nn.Module, unit: str) -> tuple[FitPlace, ...]:
    """Return the places of a replacement for a branch or an activation of a supported family; none for other units.

    An activation leaves a slope and bias in its place, or an affine map in the place of both linears around.

    Args:
        model: Network with the unit.
        unit: Name of the unit.
    """
    layout = describe(model)
    branch = layout.branch(unit)
    if branch is None:
        return next((_of_activation(model, block, unit) for block in layout.blocks if _holds(block, unit)), ())
    stream = branch.stream if branch.beside is None else ""
    return (_place(unit, branch.kind, unit, branch.last, branch.dim, stream=stream, scale=branch.scale),)


def _place(unit: str, kind: Kind, path: str, gives: str, channels: int, **further: Any) -> FitPlace:
    """Return a place in a supported family, where replacements take the input of the module at their path."""
    return FitPlace(unit, kind, path, gives, -1, channels, {}, entry=path, positions=0, **further)


def _holds(block: Block, activation: str) -> bool:
    return block.feed_forward is not None and block.feed_forward.activation == activation


def _of_activation(model: nn.Module, block: Block, unit: str) -> tuple[FitPlace, ...]:
    forward, branch = block.feed_forward, block.mlp
    assert forward is not None
    assert branch is not None
    width, hidden = linear_shape(get_module(model, forward.first))
    corrected = forward.scale is None and branch.beside is None and branch.last == forward.second
    more: dict[str, Any] = {"forms": AFFINE, "stream": branch.stream if corrected else "", "scale": branch.scale}
    slopes = _place(unit, "activation", unit, unit, hidden, forms=SLOPES)
    return slopes, _place(unit, "activation", forward.first, forward.second, width, **more)
