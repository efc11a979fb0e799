"""Units of every architecture, alone and in random sequences: what is left runs, learns, and is of the size predicted.

What was traced of an architecture is shared by its tests, which follow each other.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from cases.depth.architectures import ARCHITECTURES, quick_or_slow
from cases.depth.removal import check_sequence, check_unit, removals_in, removals_of

from prunerecover.depth.layers.pruned_graph import NotRemovable

UNITS = 4  # of a network, tried alone
SEQUENCES = 3  # of each light architecture

# Where some layers turn out to be fixed by what reads them, how many of the units still can go at least.
SHARES = {"split": 0.6, "gated": 0.7, "shared": 0.9, "post-norm": 0.8, "1-d": 0.8, "regnet": 0.7, "resnest": 0.6}
SHARES |= dict.fromkeys(("encoder", "nfnet", "maxvit", "res2net"), 0.8)

# In which a sequence takes long: one each; the benchmark of the zoo in depth draws many.
LARGE = ("resnet18", "resnet50", "mobilenet_v3", "regnet", "shufflenet", "googlenet", "vgg")
LARGE += ("mixer", "resmlp", "gmlp", "xcit", "poolformer", "metaformer", "convnext_v2", "resnest", "nfnet")
LARGE += ("cspdarknet", "edgenext", "maxvit", "res2net")

LIGHT = [name for name in ARCHITECTURES if name not in LARGE]


@pytest.fixture(scope="module", params=quick_or_slow())
def name(request: pytest.FixtureRequest) -> str:
    """An architecture; pytest runs both tests of it before those of the next."""
    return str(request.param)


@pytest.mark.slow
def test_network_runs_and_learns_without_single_units(name: str) -> None:
    removals = removals_in(name)
    units = removals.units[:: max(1, len(removals.units) // UNITS)]
    gone = 0
    for unit in units:
        with suppress(NotRemovable):
            check_unit(removals, unit)
            gone += 1
    assert gone >= SHARES.get(name, 0.9) * len(units)


def test_random_sequence_leaves_a_network_that_a_file_makes_again(name: str, tmp_path: Path) -> None:
    check_sequence(removals_in(name), 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("light", LIGHT)
def test_more_sequences_do(light: str, tmp_path: Path) -> None:
    for seed in range(1, SEQUENCES):
        check_sequence(removals_in(light), seed, tmp_path)


@pytest.mark.parametrize("strided", [pytest.param("resnet50", marks=pytest.mark.slow), "detector", "1-d", "deit"])
def test_strided_layers_leave_a_pooling(strided: str) -> None:
    removals = removals_of(*ARCHITECTURES[strided](), ("layer",), include_strided=True)
    others = {unit.name for unit in removals_in(strided, ("layer",)).units}
    for unit in removals.units:
        if unit.name not in others:
            with suppress(NotRemovable):
                check_unit(removals, unit)


@pytest.mark.slow
def test_every_layer_of_a_large_network_can_go() -> None:
    removals = removals_in("resnet50", ("layer",))
    assert len(removals.units) == 46
    for unit in removals.units[::6]:
        check_unit(removals, unit)
