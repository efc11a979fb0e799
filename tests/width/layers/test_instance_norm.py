"""Width of networks with InstanceNorm, whose channels are coupled to the preceding convolution."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from cases.layers.image_to_image import VolumeUNet, generator
from cases.width.round_trip import ExportedRoundTripChecks, RoundTrip
from torch import Tensor, nn

from prunerecover import Budget, plan_width

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
VOLUMES = torch.randn(2, 1, 8, 8, 8, generator=torch.Generator().manual_seed(1))


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a network with vectors off their initial zeros and ones."""
    torch.manual_seed(0)
    network = build()
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.is_floating_point() and tensor.ndim < 2:
            tensor.data.add_(torch.rand_like(tensor))
    return network.eval()


def with_statistics() -> nn.Module:
    return generator(norm=partial(nn.InstanceNorm2d, affine=True, track_running_stats=True))


def sequence() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(3, 8, 3), nn.InstanceNorm1d(8, affine=True), nn.ReLU(), nn.Conv1d(8, 4, 3), nn.Flatten()
    )


NETWORKS = {
    "nnU-Net": RoundTrip(partial(seeded, VolumeUNet), VOLUMES),
    "CycleGAN": RoundTrip(partial(seeded, generator), IMAGES),
    "running statistics": RoundTrip(partial(seeded, with_statistics), IMAGES),
    "sequence": RoundTrip(partial(seeded, sequence), IMAGES[..., 0]),
}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> RoundTrip:
    return NETWORKS[request.param]


class TestRoundTrip(ExportedRoundTripChecks):
    pass


def test_pruned_network_calls_its_norms_without_a_warning(network: RoundTrip) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network.run(network.pruned())


def test_norm_without_weights_follows() -> None:
    pruned = NETWORKS["CycleGAN"].pruned()
    norms = [module for module in pruned.modules() if isinstance(module, nn.InstanceNorm2d)]
    assert [norm.num_features for norm in norms] == [3, 6, 6, 6, 3]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nnU-Net"])
def test_runs_in_onnxruntime(name: str, tmp_path: Path) -> None:
    NETWORKS[name].assert_in_onnx(tmp_path)


def test_units_are_scored_behind_a_norm_without_weights() -> None:
    """In front of the norm, a unit's scale has no effect, and neither has the gradient along the scale."""
    taps = [tap.module for group in NETWORKS["CycleGAN"].found.groups for tap in group.taps]
    assert taps == ["2", "5", "7.body.6", "7.body.2", "9"]


def test_channel_that_the_next_layer_hardly_reads_goes_first() -> None:
    network = seeded(generator)
    network[4].weight.data[:, 2] *= 1e-3  # the reader of the first convolution
    plan = plan_width(network, Budget(remove={"channel": 1}), batches=[IMAGES], loss=squares, replace="zero")
    assert plan.removed == {"channel": ("1[2]",)}


def squares(network: nn.Module, batch: Tensor) -> Tensor:
    return network(batch).square().mean()


def test_two_norms_of_groups_over_a_concatenation_follow() -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1)
            self.norm, self.last = nn.GroupNorm(4, 16), nn.Conv2d(16, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.norm(torch.cat([self.a(x), self.b(x)], 1)).relu())

    trip = RoundTrip(partial(seeded, Joined), IMAGES)
    trip.assert_masked_equals_narrowed()
    assert trip.pruned().norm.num_groups == 2
