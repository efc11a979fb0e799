"""Every unit of every architecture, taken out alone: what is left runs, learns, and is of the predicted size."""

from __future__ import annotations

from contextlib import suppress

import pytest
from cases.depth.architectures import ARCHITECTURES, QUICK
from cases.depth.removal import check_unit, removals_in, removals_of

from prunerecover.depth.layers.pruned_graph import NotRemovable

OFTEN = 5  # units of one network that every run of the tests tries
WHOLE = ("resnet50",)  # of which more units are tried, and those that halve the resolution only with the slow tests

# Where some layers turn out to be fixed by what reads them, how many of the units still can go at least.
SHARES = {"split": 0.6, "gated": 0.7, "shared": 0.9, "post-norm": 0.8, "1-d": 0.8, "regnet": 0.7, "resnest": 0.6}
SHARES |= dict.fromkeys(("nfnet", "maxvit", "res2net"), 0.8)
STRIDED = ("resnet50", "detector", "1-d", "deit")


def check_all(name: str, units_at_most: int, share: float, **options: bool) -> None:
    removals = removals_of(*ARCHITECTURES[name](), **options)
    units = removals.units[:: max(1, len(removals.units) // units_at_most)]
    gone = 0
    for unit in units:
        with suppress(NotRemovable):
            check_unit(removals, unit)
            gone += 1
    assert gone >= share * len(units)


@pytest.mark.parametrize("name", QUICK)
def test_network_runs_and_learns_without_any_unit(name: str) -> None:
    check_all(name, OFTEN, SHARES.get(name, 0.9))


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_network_runs_and_learns_without_many_units(name: str) -> None:
    check_all(name, 16 if name in WHOLE else 6, SHARES.get(name, 0.9))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in WHOLE)) for n in STRIDED])
def test_strided_layers_leave_a_pooling(name: str) -> None:
    removals = removals_of(*ARCHITECTURES[name](), ("layer",), include_strided=True)
    dense = removals_in(name, ("layer",))
    strided = [unit for unit in removals.units if unit.name not in {other.name for other in dense.units}]
    for unit in strided:
        with suppress(NotRemovable):
            check_unit(removals, unit)
