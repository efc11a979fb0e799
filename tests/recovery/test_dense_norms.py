"""BatchNorm statistics of a pruned network stay as far from those of the samples as in the dense network.

The statistics of the dense network here are from other data than the calibration samples, as after a training with
augmentation: where surgery changes nothing, the output must stay the same.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from cases.depth.conv_blocks import blocks, images
from torch import Tensor, nn

from prunerecover import Budget, Plan, apply_plan, plan_width
from prunerecover.importance.context import WidthContext
from prunerecover.model.batches import ModelInputs
from prunerecover.recovery.batchnorm import batchnorms, recalibrate_batchnorm
from prunerecover.recovery.dense_reference import by_batch
from prunerecover.recovery.judged import recalibration
from prunerecover.recovery.reconstruction import fit_layers
from prunerecover.session.pruned_output import PrunedOutput

SAMPLES = [ModelInputs((part,)) for part in images().split(32)]
DEAD = (1, 4)


def of_other_data() -> Any:
    """Return convolutions with BatchNorm; the channels `DEAD` of the first are zero behind it."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6))
    network: Any = nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)).eval()
    recalibrate_batchnorm(network, [1 + 3 * images(64, 5)])
    network[0].weight.data[[*DEAD]], network[1].bias.data[[*DEAD]] = 0, -1
    network[1].running_mean[[*DEAD]] = 0
    return network


def output(network: nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = network(images(16, 9))
        return found


def without_dead(dense: nn.Module) -> tuple[Any, Plan]:
    def least_of_the_dead(context: WidthContext) -> dict[str, Tensor]:
        return {g.name: torch.tensor([float(unit not in DEAD) for unit in range(g.size)]) for g in context.groups}

    budget = Budget(remove={"channel": len(DEAD)})
    plan = plan_width(dense, budget, batches=[images(8)], importance=least_of_the_dead, replace="zero", ignore=("3",))
    network = copy.deepcopy(dense)
    apply_plan(network, plan)
    return network, plan


@pytest.mark.parametrize("way", ["recalibrated", "reconstructed", "planned"])
def test_outputs_stay_the_same_without_channels_that_do_nothing(way: str) -> None:
    dense = of_other_data()
    network, plan = without_dead(dense)
    assert set(plan.removed["channel"]) == {f"0[{unit}]" for unit in DEAD}
    if way == "recalibrated":
        recalibration(network, dense, plan)(SAMPLES)
    elif way == "reconstructed":
        fit_layers(network, dense, plan, SAMPLES)
    else:
        network = PrunedOutput(dense, SAMPLES).pruned(plan.edits, plan.tensors)
    assert torch.allclose(output(network), output(dense), atol=1e-4)
    plain = copy.deepcopy(network)
    recalibrate_batchnorm(plain, [inputs.args[0] for inputs in SAMPLES])
    assert (output(plain) - output(dense)).abs().max() > 0.1  # the samples differ from what the network was made for


def test_statistics_follow_a_change_of_scale_and_a_shift() -> None:
    """Oracle: BatchNorm undoes an affine change of its inputs."""
    dense = of_other_data()
    network = copy.deepcopy(dense)
    network[3].weight.data *= 3
    network[3].bias.data = 3 * network[3].bias.data + 5
    recalibration(network, dense, Plan())(SAMPLES)
    assert torch.allclose(output(network), output(dense), atol=1e-3)
    assert torch.allclose(network[4].running_mean, 3 * dense[4].running_mean + 5, atol=1e-2)


def test_averages_over_batches_equal_the_layers_own() -> None:
    dense = blocks()
    found, before = by_batch(dense, SAMPLES), copy.deepcopy(dense.state_dict())
    assert all(torch.equal(value, before[name]) for name, value in dense.state_dict().items())
    recalibrate_batchnorm(dense, [inputs.args[0] for inputs in SAMPLES])
    for path, norm in batchnorms(dense).items():
        assert norm.running_var is not None
        assert torch.equal(found[path][1], norm.running_var)
