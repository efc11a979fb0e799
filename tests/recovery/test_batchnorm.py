"""BatchNorm statistics: averages over batches, for networks and their references, and as far off as in these."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from cases.depth import conv_blocks
from cases.engine import equal, unchanged
from cases.models.hand_made_groups import images, small_resnet
from cases.support import stale as cases
from cases.support.stale import anew, same
from torch import Tensor, nn

from prunerecover import Budget, Plan, apply_plan, plan_depth, plan_width, reconstruct
from prunerecover.importance.context import WidthContext
from prunerecover.model.batches import ModelInputs
from prunerecover.recovery.batchnorm import batchnorms, recalibrate_batchnorm
from prunerecover.recovery.dense_reference import by_batch, dense_reference, fresh_statistics
from prunerecover.recovery.judged import recalibration
from prunerecover.recovery.reconstruction import fit_layers
from prunerecover.session.pruned_output import PrunedOutput
from prunerecover.session.session import Session


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.drop = small_resnet(), nn.Dropout(0.5)
        self.unused, self.bare = nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False)
        self.unused.running_mean += 7

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.drop(self.bare(x)))


def test_statistics_equal_those_of_training_without_momentum() -> None:
    """The oracle: PyTorch's own cumulative average, every layer in training mode; there is no dropout."""
    model, batches = small_resnet(), images()
    oracle = copy.deepcopy(model).train()
    for module in oracle.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
            module.reset_running_stats()
    with torch.no_grad():
        for x, _ in batches:
            oracle(x)
    recalibrate_batchnorm(model, batches)
    assert same(model, oracle)


def test_all_else_is_as_before() -> None:
    model = Net().train()
    model.net.layer1.eval()
    model.net.bn1.momentum = 0.3
    before, random_state = copy.deepcopy(model), torch.get_rng_state()
    recalibrate_batchnorm(model, images())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    assert [getattr(m, "momentum", 0) for m in model.modules()] == [getattr(m, "momentum", 0) for m in before.modules()]
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before.state_dict()[name])}
    assert changed == {f"net.{name}" for name, _ in model.net.named_buffers()}


def test_a_model_without_batchnorm_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    with unchanged(model):
        recalibrate_batchnorm(model, [])


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([], ValueError, "Expected at least one batch to estimate BatchNorm statistics on, but there was none"),
        ([images()[0], (torch.zeros(2, 5, 8, 8),)], RuntimeError, "channels"),
        ([images()[0], (images()[0][0] * torch.nan,)], ValueError, "running_mean of 'bn1' came out as NaN or infinite"),
    ],
)
def test_a_failure_changes_nothing(batches: list[tuple[Tensor, ...]], error: type[Exception], message: str) -> None:
    model = small_resnet()
    momentum = model.bn1.momentum
    with unchanged(model), pytest.raises(error, match=message):
        recalibrate_batchnorm(model, batches)
    assert model.bn1.momentum == momentum


Batches = list[tuple[Tensor, Tensor]]


@pytest.fixture(scope="module")
def stale() -> nn.Module:
    return cases.stale()


@pytest.fixture(scope="module")
def batches() -> Batches:
    images, labels = cases.told()
    return list(zip(images.split(16), labels.split(16), strict=True))


def test_right_statistics_stay(batches: Batches) -> None:
    right = cases.right()
    assert fresh_statistics(right, batches) == {}
    assert dense_reference(right, batches) is right


def test_stale_ones_are_replaced_in_a_copy_that_shares_the_weights(stale: nn.Module, batches: Batches) -> None:
    before = copy.deepcopy(stale)
    found = dense_reference(stale, batches)
    assert same(found, anew(stale, batches))
    assert same(stale, before)
    assert found[0].weight is stale[0].weight


def test_without_labels_nothing_can_be_said(stale: nn.Module, batches: Batches) -> None:
    def broken(network: nn.Module, batch: Any) -> Tensor:
        raise RuntimeError("no such loss")

    images = [some for some, _ in batches]
    assert fresh_statistics(stale, images) == {}
    assert fresh_statistics(stale, list(zip(images, images, strict=True))) == {}  # what an autoencoder is given
    assert fresh_statistics(stale, batches[:1]) == {}
    assert fresh_statistics(stale, batches, broken) == {}


def test_a_loss_may_know_the_network_by_reference(stale: nn.Module, batches: Batches) -> None:
    def loss(_: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(stale(batch[0]), batch[1])

    before = copy.deepcopy(stale)
    session = Session.with_dense_reference(stale, batches, loss=loss)
    assert same(session.model, anew(before, batches))
    assert same(stale, before)


@pytest.mark.parametrize(
    "planned", [partial(plan_width, budget=Budget(macs=0.4)), partial(plan_depth, remove={"layer": 1})]
)
def test_plans_are_those_of_the_network_with_its_own_statistics(
    stale: nn.Module, batches: Batches, planned: Callable[..., Plan]
) -> None:
    before = copy.deepcopy(stale)
    found, expected = (planned(network, batches=batches) for network in (stale, anew(stale, batches)))
    assert found.edits == expected.edits
    assert equal(dict(found.tensors), dict(expected.tensors))
    assert same(stale, before)


def test_layers_are_fitted_to_the_network_with_its_own_statistics(stale: nn.Module, batches: Batches) -> None:
    plan = plan_width(stale, Budget(macs=0.4), batches=batches)
    networks = []
    for dense in (stale, anew(stale, batches)):
        network = copy.deepcopy(stale)
        apply_plan(network, plan)
        kept = reconstruct(network, dense, plan, batches)
        assert kept.way == "reconstructed"
        networks.append(network)
    assert same(*networks)


# Statistics of a pruned network stay as far from those of the samples as in the dense network. Those of the dense
# network are from other data here, as after a training with augmentation: where surgery changes nothing, outputs stay.

SAMPLES = [ModelInputs((part,)) for part in conv_blocks.images().split(32)]
DEAD = (1, 4)


def of_other_data() -> Any:
    """Return convolutions with BatchNorm; the channels `DEAD` of the first are zero behind it."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6))
    network: Any = nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)).eval()
    recalibrate_batchnorm(network, [1 + 3 * conv_blocks.images(64, 5)])
    network[0].weight.data[[*DEAD]], network[1].bias.data[[*DEAD]] = 0, -1
    network[1].running_mean[[*DEAD]] = 0
    return network


def output(network: nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = network(conv_blocks.images(16, 9))
        return found


def without_dead(dense: nn.Module) -> tuple[Any, Plan]:
    def least_of_the_dead(context: WidthContext) -> dict[str, Tensor]:
        return {g.name: torch.tensor([float(unit not in DEAD) for unit in range(g.size)]) for g in context.groups}

    budget = Budget(remove={"channel": len(DEAD)})
    plan = plan_width(
        dense, budget, batches=[conv_blocks.images(8)], importance=least_of_the_dead, replace="zero", ignore=("3",)
    )
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
    dense = conv_blocks.blocks()
    with unchanged(dense):
        found = by_batch(dense, SAMPLES)
    recalibrate_batchnorm(dense, [inputs.args[0] for inputs in SAMPLES])
    for path, norm in batchnorms(dense).items():
        assert norm.running_var is not None
        assert torch.equal(found[path][1], norm.running_var)
