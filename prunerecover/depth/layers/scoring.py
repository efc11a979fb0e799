"""The context in which units of the graph are scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from prunerecover.calibration.block_maps import tensors_of
from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.depth.layers.variants import Variants
from prunerecover.importance.context import Loss
from prunerecover.model.batches import ModelInputs
from prunerecover.model.copies import share_copy
from prunerecover.plan.units import Unit
from prunerecover.surgery.apply_edits import Applied, apply_edits

Scores = dict[str, float]


@dataclass(frozen=True)
class GraphContext:
    """What units are scored in.

    Attributes:
        variants: Judge sets of units.
        samples: Calibration samples on the network's device.
        units: To score.
        gone: Units that went before: the others are scored on the pruned network.
        batches: Calibration batches as the user gave them, labels included.
        loss: `loss(model, batch) -> scalar`.
        seed: Of everything random.
    """

    variants: Variants
    samples: Sequence[ModelInputs]
    units: Sequence[Unit]
    gone: tuple[Unit, ...] = ()
    batches: Sequence[Any] = ()
    loss: Loss | None = None
    seed: int = 0

    def without(self, *more: Unit) -> tuple[nn.Module, Applied]:
        """Return a copy without the units that are gone and some more, which shares its tensors, and what was cut.

        Raises:
            NotRemovable: If they cannot go.
        """
        removals = self.variants.removals
        network, edits = share_copy(removals.model), removals.edits([*self.gone, *more], in_place=True)
        return network, apply_edits(network, edits, tensors_of(edits, removals.maps))

    def score_each(self, score: Callable[[Unit], float]) -> Scores:
        """Return the score of each unit; infinite for those that cannot go."""
        return {unit.name: self._or_infinite(score, unit) for unit in self.units}

    def _or_infinite(self, score: Callable[[Unit], float], unit: Unit) -> float:
        try:
            with self.variants.removals.trying([*self.gone, unit]):
                return score(unit)
        except NotRemovable as error:
            self.variants.refused = f"{error} "
            return math.inf
