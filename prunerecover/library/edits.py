"""Edits of chosen variants, with their tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from prunerecover.calibration.moments import Moments
from prunerecover.calibration.places import Fit as StandInFit
from prunerecover.calibration.stand_in_fits import PlaceWeights
from prunerecover.depth.layers.removals import Removals
from prunerecover.depth.layers.standard import with_blocks_taken_out
from prunerecover.families.describe import is_supported
from prunerecover.files.held_tensors import all_held
from prunerecover.library.moments import Fitted
from prunerecover.library.variants import LibrarySite, Variant
from prunerecover.model.paths import is_within
from prunerecover.plan.edits import Bypass, Edit, Narrow, Refit, Replace
from prunerecover.plan.groups import Group
from prunerecover.plan.units import Unit
from prunerecover.width.compensation import Reader, predictions, readers_of_edits, with_compensation
from prunerecover.width.narrowable import NarrowableNetwork

FITTED = ("affine", "constant")  # replacements fitted at a station


@dataclass(frozen=True, eq=False)
class Fit:
    """Fitted values of a variant.

    Attributes:
        modules: New parameters by path of the module, as in `Refit`.
        replacement: Parameters of the unit's replacement, by name.
        stand_in: Replacement with its place, of a unit known from the graph alone, or in a named search; None: an
            identity or zero.
    """

    modules: Mapping[str, Fitted] = field(default_factory=dict)
    replacement: Fitted = field(default_factory=dict)
    stand_in: StandInFit | None = None

    def held(self) -> Fit:
        """Return the fit with values to hold; see `held_tensors`."""
        modules = {path: all_held(values) for path, values in self.modules.items()}
        return Fit(modules, all_held(self.replacement), self.stand_in)


Chosen = Mapping[str, tuple[Variant, Fit]]  # by site; all other sites stay unchanged


@dataclass
class EditMaker:
    """Maker of the edits of variants.

    Attributes:
        sites: Sites of the network, by name.
        network: Groups of the network; None if no group may be narrowed.
        removals: Units of depth of the network; None if no unit may go.
        moments: Moments of the inputs of reading weights not refitted by any variant.
        head_sizes: Groups of head dimensions.
        stand_ins: Replacements of units known from the graph alone, by unit and name, each fitted as the only change.
        weights: Weights of the rows in fits of replacements; None: equal weights.
    """

    sites: Mapping[str, LibrarySite]
    network: NarrowableNetwork | None
    removals: Removals | None
    moments: Mapping[Reader, Moments] = field(default_factory=dict)
    head_sizes: Sequence[Group] = ()
    stand_ins: Mapping[str, Mapping[str, StandInFit]] = field(default_factory=dict)
    weights: PlaceWeights | None = None

    def alone(self, site: str, variant: Variant) -> Fit:
        """Return a variant's fit without the values fitted at stations, which change no cost."""
        return Fit(stand_in=self.stand_ins.get(site, {}).get(variant.leaves))

    def edits(self, chosen: Chosen, *, in_place: bool = True) -> tuple[tuple[Edit, ...], dict[str, Tensor]]:
        """Return the edits of a choice, and their tensors.

        Args:
            chosen: Variants with their fits, by site.
            in_place: Whether paths stay unchanged, with an identity in the place of a block.
        """
        chosen, _ = self.sized(chosen)
        found, tensors = self._narrowing(chosen)
        refits, values = _refits(chosen, len(found))
        found, tensors = [*found, *refits], {**tensors, **values}
        units = [(self.sites[site].unit, v, fit) for site, (v, fit) in chosen.items() if v.leaves]
        for edit, fitted in self._gone([(u, v, f) for u, v, f in units if u is not None], in_place=in_place):
            named = {f"e{len(found)}.{name}": value for name, value in fitted.items()}
            found.append(edit.model_copy(update={"tensors": tuple(named)}) if named else edit)
            tensors |= named
        return tuple(found), tensors

    def edits_at(self, site: str, fitted: Chosen) -> tuple[tuple[Edit, ...], dict[str, Tensor]]:
        """Return the edits of the values fitted at a station of a network, from which removed blocks are already gone.

        Args:
            site: Site of the station.
            fitted: Variant of the site, or a removed block behind, whose fit is for the station's layer.
        """
        return self.edits(fitted) if site in fitted else _refits(fitted)

    def gone_blocks(self, chosen: Chosen) -> list[str]:
        """Return the blocks removed by a choice without a fitted replacement."""
        return [site for site, (v, _) in chosen.items() if v.leaves == "zero" and self.sites[site].kind == "block"]

    def _narrowing(self, chosen: Chosen) -> tuple[list[Edit], dict[str, Tensor]]:
        removed = {name: units for variant, _ in chosen.values() for name, units in variant.tensors.items()}
        if self.network is None or not removed:
            return [], {}
        edits = self.network.edits(removed, self.head_sizes)
        narrows = [edit for edit in edits if isinstance(edit, Narrow)]
        refitted = {path for _, fit in chosen.values() for path in fit.modules}
        known = {
            reader: self.moments[reader]
            for own in readers_of_edits(narrows)
            for reader in own
            if reader in self.moments and reader.module not in refitted
        }
        return with_compensation(edits, predictions(narrows, known))

    def _gone(
        self, units: Sequence[tuple[Unit, Variant, Fit]], *, in_place: bool
    ) -> list[tuple[Edit, Mapping[str, Tensor]]]:
        """Return the edits for the removal of units, with the parameters of the replacements."""
        if not units:
            return []
        assert self.removals is not None, "units of depth come from it"
        removals, found = self.removals, list[tuple[Edit, Mapping[str, Tensor]]]()
        others = list[Unit]()
        for unit, variant, fit in units:
            if variant.leaves in FITTED and is_supported(removals.model) and fit.stand_in is None:
                replacing = Replace(unit=unit.name, kind=unit.kind, leaves=variant.leaves)  # type: ignore[arg-type]
                found.append((replacing, fit.replacement))
            else:
                others.append(unit)
        fits = {unit.name: fit.stand_in for unit, _, fit in units if fit.stand_in is not None}
        with removals.fitted(fits):
            edits = removals.edits(others, in_place=in_place) if others else ()
        if not in_place:
            edits = with_blocks_taken_out(removals.model, removals.example, edits)
        for edit in edits:
            own: Mapping[str, Tensor] = {}
            if isinstance(edit, Bypass | Replace) and edit.tensors:
                own = {key.rpartition(".")[2]: value for key, value in fits[edit.unit].tensors.items()}
            found.append((edit, own))
        return found

    def sized(self, chosen: Chosen) -> tuple[dict[str, tuple[Variant, Fit]], dict[str, Tensor]]:
        """Return a choice with replacements of units narrowed to the remaining channels, and these channels by site."""
        gone = {name: set(units) for variant, _ in chosen.values() for name, units in variant.removed.items()}
        found, kept = dict(chosen), dict[str, Tensor]()
        for site, (variant, fit) in chosen.items():
            unit, stand_in = self.sites[site].unit, fit.stand_in
            group = None if unit is None or stand_in is None else self._stream(unit, stand_in.place.channels, gone)
            if group is None or stand_in is None:
                continue
            own = kept[site] = torch.tensor([n for n in range(group.size) if n not in gone[group.name]])
            values = {
                name: value[own][:, own] if value.ndim == 2 else value[own] for name, value in stand_in.values.items()
            }
            narrow = replace(stand_in, place=replace(stand_in.place, channels=len(own)), values=values)
            found[site] = variant, replace(fit, stand_in=narrow)
        return found, kept

    def _stream(self, unit: Unit, channels: int, gone: Collection[str]) -> Group | None:
        """Return the narrowed group of the stream around a unit, which has so many channels; None without one."""
        for group in self.network.groups if self.network is not None else ():
            inside = [any(is_within(part.tensor, path) for path in unit.targets) for part in group.slices]
            if group.name in gone and group.size == channels and any(inside) and not all(inside):
                return group
        return None


def _refits(chosen: Chosen, first: int = 0) -> tuple[tuple[Edit, ...], dict[str, Tensor]]:
    """Return the edits for new values of modules, and the values.

    Args:
        chosen: Variants with their fits, by site.
        first: Number of the first edit in its plan.
    """
    fitted = [(path, values) for _, fit in chosen.values() for path, values in fit.modules.items()]
    found, tensors = list[Edit](), dict[str, Tensor]()
    for number, (path, values) in enumerate(fitted, start=first):
        own = {f"e{number}.{name}": value for name, value in values.items()}
        found.append(Refit(unit=path, tensors=tuple(own)))
        tensors |= own
    return tuple(found), tensors
