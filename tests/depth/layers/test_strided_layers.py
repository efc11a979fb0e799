"""Layers that halve the resolution, taken out alone: what is left runs, learns, and is of the predicted size."""

from __future__ import annotations

from contextlib import suppress

import pytest
from cases.depth.architectures import ARCHITECTURES
from cases.depth.removal import check_unit, removals_in, removals_of

from prunerecover.depth.layers.pruned_graph import NotRemovable

STRIDED = ("resnet50", "detector", "1-d", "deit")
LONG = ("resnet50",)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in STRIDED])
def test_strided_layers_leave_a_pooling(name: str) -> None:
    removals = removals_of(*ARCHITECTURES[name](), ("layer",), include_strided=True)
    dense = removals_in(name, ("layer",))
    strided = [unit for unit in removals.units if unit.name not in {other.name for other in dense.units}]
    for unit in strided:
        with suppress(NotRemovable):
            check_unit(removals, unit)
