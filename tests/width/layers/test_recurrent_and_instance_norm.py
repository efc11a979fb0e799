"""Hidden units of recurrent layers, with all gates, layers and directions; channels that InstanceNorm normalises."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from cases.layers.attentions import seeded
from cases.layers.image_to_image import VolumeUNet, generator
from cases.layers.recurrent import SEQUENCES, Attended, Tagger
from cases.width.round_trip import ExportedRoundTripChecks, RoundTrip, RoundTripChecks
from torch import Tensor, nn

from prunerecover import Budget, find_groups, plan_width

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
VOLUMES = torch.randn(2, 1, 8, 8, 8, generator=torch.Generator().manual_seed(1))
FORMS = {
    "LSTM": partial(Tagger),
    "RNN": partial(Tagger, nn.RNN, nonlinearity="relu"),
    "directions": partial(Tagger, bidirectional=True, num_layers=2),
    "states of a GRU": partial(Tagger, nn.GRU, states=True, num_layers=2),
    "packed": partial(Tagger, packed=True),
    "without biases": partial(Tagger, bias=False),
    "attended": Attended,
}


def built(name: str) -> nn.Module:
    return seeded(FORMS[name](), std=0.5)


def normed(build: Callable[[], nn.Module]) -> nn.Module:
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
    norm = nn.InstanceNorm1d(8, affine=True)
    return nn.Sequential(nn.Conv1d(3, 8, 3), norm, nn.ReLU(), nn.Conv1d(8, 4, 3), nn.Flatten())


NORMED = {
    "nnU-Net": RoundTrip(partial(normed, VolumeUNet), VOLUMES),
    "CycleGAN": RoundTrip(partial(normed, generator), IMAGES),
    "running statistics": RoundTrip(partial(normed, with_statistics), IMAGES),
    "sequence": RoundTrip(partial(normed, sequence), IMAGES[..., 0]),
}
NETWORKS = {**NORMED, **{name: RoundTrip(partial(built, name), SEQUENCES) for name in FORMS}}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> RoundTrip:
    return NETWORKS[request.param]


class TestRoundTrip(RoundTripChecks):
    pass


@pytest.mark.parametrize("name", NORMED)
def test_norms_are_exported_and_called_without_a_warning(name: str) -> None:
    network = NORMED[name]
    ExportedRoundTripChecks().test_exported(network)
    with warnings.catch_warnings(action="error"):
        network.run(network.pruned())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nnU-Net", "states of a GRU"])
def test_runs_in_onnxruntime(name: str, tmp_path: Path) -> None:
    NETWORKS[name].assert_in_onnx(tmp_path)


def squares(network: nn.Module, batch: Tensor) -> Tensor:
    return network(batch).square().mean()


# Recurrent layers


@pytest.mark.parametrize("name", ["LSTM", "directions", "attended"])
def test_plan_takes_units_that_hardly_count(name: str) -> None:
    model = built(name)
    for weight in (model.last.weight,) if name != "attended" else (model.score.weight, model.value.weight):
        weight.data[:, 4:5] *= 1e-4
        weight.data[:, 14:15] *= 1e-4
    for weight_name, weight in model.rnn.named_parameters():
        if weight.ndim == 2 and weight_name not in ("weight_ih_l0", "weight_ih_l0_reverse"):
            weight.data[:, 4 :: 10 if name != "attended" else 8] *= 1e-4
    ignore = ["first"] if name != "attended" else ["value"]
    budget = Budget(remove={"neuron": 1})
    plan = plan_width(model, budget, batches=[SEQUENCES], loss=squares, ignore=ignore, replace="zero")
    assert plan.removed == {"neuron": ("rnn[4]",)}


def test_gradients_are_taken_without_cudnn() -> None:
    """The recurrent layers of cuDNN refuse a backward pass in evaluation mode."""
    enabled = []

    def loss(network: nn.Module, batch: Tensor) -> Tensor:
        enabled.append(torch.backends.cudnn.enabled)
        return squares(network, batch)

    plan_width(built("LSTM"), Budget(params=0.2), batches=[SEQUENCES], loss=loss)
    assert enabled == [False]
    assert torch.backends.cudnn.enabled


def test_projected_states_stay() -> None:
    model = seeded(Tagger(proj_size=4, num_layers=1), std=0.5)
    model.last = nn.Linear(4, 3)
    with pytest.raises(ValueError, match="What keeps them: .*by proj_size in 'rnn'"):
        find_groups(model, SEQUENCES)


def test_states_that_code_makes_of_a_fixed_size_stay() -> None:
    class Fixed(Tagger):
        def forward(self, x: Tensor) -> Tensor:
            zeros = torch.zeros(1, len(x), 10)
            return self.last(self.rnn(self.first(x), (zeros, zeros))[0])

    found = find_groups(seeded(Fixed(), std=0.5), SEQUENCES)
    assert [group.name for group in found.groups] == ["first"]


# InstanceNorm


def test_norm_without_weights_follows_and_units_are_scored_behind_it() -> None:
    """In front of the norm, a unit's scale has no effect, and neither has the gradient along the scale."""
    trip = NORMED["CycleGAN"]
    norms = [module for module in trip.pruned().modules() if isinstance(module, nn.InstanceNorm2d)]
    assert [norm.num_features for norm in norms] == [3, 6, 6, 6, 3]
    taps = [tap.module for group in trip.found.groups for tap in group.taps]
    assert taps == ["2", "5", "7.body.6", "7.body.2", "9"]


def test_channel_that_the_next_layer_hardly_reads_goes_first() -> None:
    network = normed(generator)
    network[4].weight.data[:, 2] *= 1e-3  # the reader of the first convolution
    plan = plan_width(network, Budget(remove={"channel": 1}), batches=[IMAGES], loss=squares, replace="zero")
    assert plan.removed == {"channel": ("1[2]",)}


def test_two_norms_of_groups_over_a_concatenation_follow() -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1)
            self.norm, self.last = nn.GroupNorm(4, 16), nn.Conv2d(16, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.norm(torch.cat([self.a(x), self.b(x)], 1)).relu())

    trip = RoundTrip(partial(normed, Joined), IMAGES)
    trip.assert_masked_equals_narrowed()
    assert trip.pruned().norm.num_groups == 2
