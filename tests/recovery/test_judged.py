"""Of the ways to improve a pruned network, the nearest to the dense network is kept; also after units of depth."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from cases.depth.conv_blocks import blocks, error, labelled
from cases.engine import unchanged
from cases.models.habits import tiny_vit
from torch import nn

from prunerecover import apply_plan, plan_depth, recalibrate_batchnorm
from prunerecover.calibration.samples import split_batches
from prunerecover.model.batches import ModelInputs
from prunerecover.recovery.judged import Way, keep_nearest, nearest, recalibrate_if_nearer
from prunerecover.recovery.reconstruction import fit_layers, made_for

SAMPLES = split_batches([torch.randn(16, 3, generator=torch.Generator().manual_seed(0))], torch.device("cpu"))


def linear(weight: float) -> nn.Linear:
    layer = nn.Linear(3, 2, bias=False)
    nn.init.constant_(layer.weight, weight)
    layer.weight.data[0] *= 2
    return layer


def setting(network: nn.Linear, weight: float, seen: list[int] | None = None) -> Way:
    def way(samples: Sequence[ModelInputs]) -> None:
        if seen is not None:
            seen.append(sum(inputs.n_samples for inputs in samples))
        network.weight.data.copy_(linear(weight).weight)

    return way


def test_the_nearest_is_kept_and_done_with_all_samples() -> None:
    network, seen = linear(1.0), list[int]()
    ways = {"far": setting(network, 0.5), "near": setting(network, 1.9, seen), "farther": setting(network, 4.0)}
    kept = keep_nearest(network, linear(2.0), SAMPLES, ways)
    assert kept.way == "near"
    assert torch.equal(network.weight, linear(1.9).weight)
    assert min(kept.divergence, key=kept.divergence.__getitem__) == "near"
    assert seen == [12, 16]  # every 4th is held out while it is judged
    assert str(kept).startswith("near (output divergence: as it is ")


def test_it_stays_as_it_is_where_nothing_helps() -> None:
    network, dense = linear(1.9), linear(2.0)
    before = network.weight.clone()
    kept = keep_nearest(network, dense, SAMPLES, {"worse": setting(network, 1.0), "equal": setting(network, 1.9)})
    assert kept.way == "as it is"
    assert torch.equal(network.weight, before)


@pytest.mark.parametrize(
    ("found", "nearer"),
    [
        ([[1.0, 1.0], [0.8, 1.0], [1.2, 1.0]], True),
        ([[1.9, 1.0], [2.1, 1.2], [1.4, 0.9]], False),  # nearer by 0.03, give or take 0.15
        ([[0.5, 1.1], [0.4, 1.2], [0.5, 1.1]], False),  # a part is further off
        ([[0.5, 0.9], [0.4, 1.2], [0.5, 1.0]], True),  # but that may be chance
        ([[np.inf, np.inf]], False),
    ],
)
def test_it_has_to_be_nearer_beyond_chance_in_all_parts(found: list[list[float]], nearer: bool) -> None:
    as_it_is = np.array([[1.8, 1.0], [2.2, 1.0], [1.5, 1.0]])
    assert nearest({"as it is": as_it_is, "other": np.array(found)}) == ("other" if nearer else "as it is")


def test_the_last_way_is_done_where_outputs_cannot_be_compared() -> None:
    network = linear(1.0)
    ways = {"far": setting(network, 0.5), "last": setting(network, 9.0)}
    kept = keep_nearest(network, nn.Linear(3, 5), SAMPLES, ways)
    assert (kept.way, kept.divergence, str(kept)) == ("last", {}, "last")
    assert torch.equal(network.weight, linear(9.0).weight)


def test_after_an_error_the_network_is_as_before() -> None:
    network = linear(1.0)

    def breaks(samples: Sequence[ModelInputs]) -> None:
        network.weight.data.zero_()
        raise KeyError("no")

    with pytest.raises(KeyError):
        keep_nearest(network, linear(2.0), SAMPLES, {"breaks": breaks})
    assert torch.equal(network.weight, linear(1.0).weight)


@pytest.mark.parametrize(("factor", "way"), [(1, "as it is"), (9, "recalibrated")])
def test_statistics_are_estimated_anew_if_that_helps(factor: float, way: str) -> None:
    dense, x = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).eval(), torch.randn(64, 3)
    recalibrate_batchnorm(dense, [x])
    network = copy.deepcopy(dense)
    network[1].running_var *= factor
    before = network[1].running_var.clone()
    assert recalibrate_if_nearer(network, dense, [ModelInputs((x,))]).way == way
    assert torch.equal(network[1].running_var, before) == (way == "as it is")


def test_of_ways_that_come_close_the_one_that_changes_less_is_kept() -> None:
    samples = np.linspace(0.9, 1.1, 8)[:, None]
    found = {"as it is": samples, "recalibrated": 0.019 * samples, "reconstructed": 0.001 * samples}
    assert nearest(found) == "recalibrated"
    assert nearest(found | {"recalibrated": 0.03 * samples}) == "reconstructed"


@pytest.mark.slow
@pytest.mark.parametrize("remove", [{"block": 1}, {"layer": 1}])
def test_after_units_of_depth_went_outputs_come_nearer_to_the_dense_ones(remove: dict[str, int]) -> None:
    dense = blocks()
    ignore = ("blocks.3*",)  # behind it comes nothing
    plan = plan_depth(dense, remove=remove, batches=labelled(), ignore=ignore, replace="identity")
    network = copy.deepcopy(dense)
    apply_plan(network, plan)
    recalibrated = copy.deepcopy(network)
    recalibrate_batchnorm(recalibrated, labelled(256))
    with unchanged(dense):
        fit_layers(network, dense, plan, [ModelInputs((images,)) for images, _ in labelled(256)])
    assert error(network, dense) < 0.9 * error(recalibrated, dense)


def test_networks_that_mostly_normalise_by_batch_are_made_for_it() -> None:
    vit = tiny_vit()
    assert made_for(blocks())
    assert not made_for(vit)
    vit.patch_embed = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))  # a stem
    assert not made_for(vit)
