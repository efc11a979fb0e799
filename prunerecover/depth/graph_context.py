"""Context of units on the graph: surgery on a copy shows the weights that leave with a unit, and runs the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.depth.variants import Variants
from prunerecover.importance.context import DepthContext, ValuesOf, sum_of, unit_parameters
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import evaluating
from prunerecover.plan.units import Unit
from prunerecover.surgery.apply_edits import Applied, apply_edits
from prunerecover.surgery.narrowing import Cuts

Leaving = list[tuple[Parameter, Cuts | None]]


@dataclass(frozen=True, kw_only=True)
class GraphContext(DepthContext):
    """Units of the graph to score, on the network without removed units; see `DepthContext`.

    Attributes:
        variants: Judge of sets of units.
        gone: Removed units: `model` is the network without the units.
        applied: Cuts of the parameters of `model`.
        stuck: Names of refused units.
    """

    variants: Variants
    gone: tuple[Unit, ...] = ()
    applied: Applied = field(default_factory=Applied)
    stuck: set[str] = field(default_factory=set)
    _leaving: dict[str, Leaving] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls, variants: Variants, units: Sequence[Unit], gone: tuple[Unit, ...], batches: Sequence[Any], **how: Any
    ) -> GraphContext:
        """Return the context of units on top of removed units.

        Args:
            variants: Judge of sets of units.
            units: Units to score.
            gone: Removed units.
            batches: Calibration batches of the user, labels included.
            how: Loss and seed.
        """
        network, applied = _without(variants, gone)
        return cls(variants=variants, units=units, gone=gone, model=network, applied=applied, batches=batches, **how)

    def cannot_go(self, name: str) -> bool:
        """Whether a unit was refused, on top of the removed units."""
        return name in self.stuck

    @property
    def weights(self) -> Sequence[Parameter]:
        """All parameters: sections of layers anywhere may leave with a unit."""
        return list(self.model.parameters())

    def sum_weights(self, values: ValuesOf) -> Scores:
        """Return the sum over the parameters of each unit and the sections of layers narrowed with the unit."""

        def part(parameter: Parameter, cuts: Cuts | None) -> float:
            value = values(parameter)
            if value is None or cuts is None:
                return sum_of(value)
            value = kept = self._spread(value, parameter)
            for cut in cuts:
                kept = cut.of(kept)
            return sum_of(value) - sum_of(kept)

        def leaving(unit: Unit) -> float:
            return math.fsum(part(*one) for one in self._leaving_with(unit))

        return self._by_name(lambda unit: self._or_infinite(leaving, unit))

    def divergences(self) -> Scores:
        """Return the output divergence from the dense network without each unit, on all samples."""
        scores = self.variants.scores(self.gone, self.units)
        found = dict(zip((unit.name for unit in self.units), scores, strict=True))
        self.stuck.update(name for name, score in found.items() if score == math.inf)
        return self._by_name(lambda unit: found[unit.name])

    def each_without(self, score: Callable[[nn.Module, Unit], float]) -> Scores:
        """Return the score of the network without each unit, by name; infinite for refused units."""

        def without(unit: Unit) -> float:
            network, _ = _without(self.variants, [*self.gone, unit])
            with evaluating(network):
                return score(network, unit)

        return self._by_name(lambda unit: self._or_infinite(without, unit))

    def _or_infinite(self, score: Callable[[Unit], float], unit: Unit) -> float:
        try:
            with self.variants.removals.trying([*self.gone, unit]):
                return score(unit)
        except NotRemovable as error:
            self.variants.refused = f"{error} "
            self.stuck.add(unit.name)
            return math.inf

    def _leaving_with(self, unit: Unit) -> Leaving:
        """Return the parameters that leave with a unit, wholly (None) or outside the kept part of cuts."""
        if unit.name in self._leaving:
            return self._leaving[unit.name]
        network, cut = _without(self.variants, [*self.gone, unit])
        around = set(unit_parameters(network, unit)) if unit.kind == "activation" else set()
        left = {id(cut.origin(p)[0]): cut.origin(p)[1] for p in network.parameters() if p not in around}
        found = self._leaving[unit.name] = list[tuple[Parameter, Cuts | None]]()
        dense = {id(p) for p in self.variants.removals.model.parameters()}  # without those of replacements
        for parameter in self.model.parameters():
            old = id(self.applied.origin(parameter)[0])
            cuts = left.get(old)
            if old in dense and (cuts is None or cuts):
                found.append((parameter, cuts))
        return found

    def _spread(self, value: Tensor, parameter: Parameter) -> Tensor:
        """Put the values of a narrowed parameter at the places of the dense parameter; 0 elsewhere."""
        old, cuts = self.applied.origin(parameter)
        shape = list(value.shape)
        for cut in reversed(cuts):
            shape[cut.dim] = old.shape[cut.dim]
            value = torch.zeros(shape, dtype=value.dtype, device=value.device).index_copy(
                cut.dim, cut.kept.to(value.device), value
            )
        return value


def _without(variants: Variants, units: Sequence[Unit]) -> tuple[nn.Module, Applied]:
    """Return a copy without some units, which shares tensors, and the cuts.

    Raises:
        NotRemovable: If the units cannot go.
    """
    network = share_copy(variants.removals.model)
    return network, apply_edits(network, *variants.maker.edits(variants.chosen(units)))
