"""Reconstruction after units of depth went: what is missing in the stream is made good by what comes behind."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.depth.conv_blocks import blocks, error, labelled
from cases.models.habits import tiny_vit
from cases.models.tiny import tiny_inputs, tiny_llama
from torch import nn

from prunerecover import Budget, apply_plan, plan_depth, plan_width, recalibrate_batchnorm, reconstruct
from prunerecover.model.batches import ModelInputs, as_inputs
from prunerecover.recovery.reconstruction import fit_layers, made_for


def images(*how: int) -> list[ModelInputs]:
    return [ModelInputs((batch,)) for batch, _ in labelled(*how)]


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
    before = copy.deepcopy(dense.state_dict())
    fit_layers(network, dense, plan, images(256))
    assert error(network, dense) < 0.9 * error(recalibrated, dense)
    for name, value in before.items():
        assert torch.equal(dense.state_dict()[name], value), name


@pytest.mark.slow
def test_layers_before_the_first_block_that_went_stay_as_they_are() -> None:
    dense = blocks()
    plan = plan_depth(dense, remove={"block": 1}, batches=labelled(), ignore=("blocks.[013]",), replace="identity")
    assert plan.removed["block"] == ("blocks.2",)
    network = copy.deepcopy(dense)
    apply_plan(network, plan)
    fit_layers(network, dense, plan, images())
    weights = {name: value for name, value in network.named_parameters() if name.endswith("weight") and value.ndim > 1}
    changed = {name for name, value in weights.items() if not torch.equal(value, dense.get_parameter(name))}
    assert changed == {"blocks.3.first.weight", "blocks.3.second.weight"}


@pytest.mark.slow
def test_depth_and_width_are_made_good_together() -> None:
    """Towards the dense network's outputs, not towards those without the units of depth."""
    dense = blocks()
    depth = plan_depth(dense, remove={"block": 1}, batches=labelled(), ignore=("blocks.[23]*",), replace="identity")
    between = copy.deepcopy(dense)
    apply_plan(between, depth)
    width = plan_width(between, Budget(macs=0.2), batches=labelled(), replace="zero")
    network = copy.deepcopy(between)
    apply_plan(network, width)
    in_part = copy.deepcopy(network)
    fit_layers(in_part, between, width, images(256))
    fit_layers(network, dense, depth + width, images(256))
    assert error(network, dense) < error(in_part, dense)


def test_blocks_that_moved_up_are_fitted_to_what_they_were() -> None:
    dense = tiny_llama(num_hidden_layers=4).eval()
    batches = [tiny_inputs("llama", batch=8)]
    plan = plan_depth(dense, remove={"block": 1}, batches=batches, ignore=("model.layers.[023]",), replace="zero")
    network = copy.deepcopy(dense)
    apply_plan(network, plan)
    before = copy.deepcopy(network.state_dict())
    reconstruct(network, dense, plan, batches)  # compared with the same blocks, which lack the same one
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=1e-4, msg=name)


@pytest.mark.slow
def test_a_layer_that_took_in_the_one_behind_it_stays_as_it_is() -> None:
    """Without its activation an MLP may become one linear in the place of the first of two, of the same size here."""
    torch.manual_seed(0)
    dense, x = tiny_vit(mlp_ratio=1).eval(), torch.randn(256, 1, 8, 8)
    for name, value in dense.named_parameters():
        value.data *= 6 if ".fc" in name else 1  # so that the activation matters
    plan = plan_depth(dense, remove={"activation": 1}, batches=[x], ignore=("blocks.[12]*",))
    assert [edit.leaves for edit in plan.edits] == ["affine"]  # type: ignore[union-attr]
    network = copy.deepcopy(dense)
    apply_plan(network, plan)
    there = network.get_parameter("blocks.0.mlp.fc1.weight").clone()
    assert there.shape == dense.get_parameter("blocks.0.mlp.fc1.weight").shape
    fit_layers(network, dense, plan, [as_inputs(x)])
    assert torch.equal(network.get_parameter("blocks.0.mlp.fc1.weight"), there)
    assert not torch.equal(
        network.get_parameter("blocks.1.mlp.fc1.weight"), dense.get_parameter("blocks.1.mlp.fc1.weight")
    )


def test_networks_that_mostly_normalise_by_batch_are_made_for_it() -> None:
    vit = tiny_vit()
    assert made_for(blocks())
    assert not made_for(vit)
    vit.patch_embed = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))  # a stem
    assert not made_for(vit)
