"""BatchNorm statistics estimated anew: plain averages over batches, and nothing else changes."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.models.hand_made_groups import images, small_resnet
from torch import Tensor, nn

from prunerecover.recovery.batchnorm import recalibrate_batchnorm


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.drop = small_resnet(), nn.Dropout(0.5)
        self.unused, self.bare = nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False)
        self.unused.running_mean += 7

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.drop(self.bare(x)))


def test_statistics_of_the_first_layer_are_averages_over_the_batches() -> None:
    model, batches = small_resnet(), images(20)
    assert [len(y) for _, y in batches] == [8, 8, 4]
    with torch.no_grad():
        maps = [model.conv1(x) for x, _ in batches]
    recalibrate_batchnorm(model, batches)
    mean = torch.stack([m.mean((0, 2, 3)) for m in maps]).mean(0)
    variance = torch.stack([m.var((0, 2, 3)) for m in maps]).mean(0)
    assert torch.allclose(model.bn1.running_mean, mean, atol=1e-6)
    assert torch.allclose(model.bn1.running_var, variance, rtol=1e-5)
    assert model.bn1.num_batches_tracked == 3


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
    found, expected = model.state_dict(), oracle.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_all_else_is_as_before() -> None:
    model = Net().train()
    model.net.layer1.eval()
    model.net.bn1.momentum = 0.3
    before, random_state = copy.deepcopy(model), torch.get_rng_state()
    recalibrate_batchnorm(model, images())
    assert torch.equal(torch.get_rng_state(), random_state)
    for (name, module), old in zip(model.named_modules(), before.modules(), strict=True):
        assert module.training == old.training, name
        assert getattr(module, "momentum", None) == getattr(old, "momentum", None)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before.parameters(), strict=True))
    changed = {
        name.rpartition(".")[0]
        for name, t in model.state_dict().items()
        if not torch.equal(t, before.state_dict()[name])
    }
    assert changed == {f"net.{n}" for n, m in model.net.named_modules() if isinstance(m, nn.BatchNorm2d)}


def test_dropout_is_off() -> None:
    """Two runs agree without a seed, and with a network that has no dropout."""
    first, second = Net().train(), Net().train()
    second.drop = nn.Identity()
    for model in (first, second):
        recalibrate_batchnorm(model, [x for x, _ in images()])
    assert torch.equal(first.net.bn1.running_var, second.net.bn1.running_var)


def test_twice_is_once() -> None:
    """Every layer sees normalised inputs, so that old statistics do not matter."""
    model, batches = small_resnet(), images()
    recalibrate_batchnorm(model, batches)
    once = copy.deepcopy(model.state_dict())
    recalibrate_batchnorm(model, iter(batches))
    assert all(torch.equal(model.state_dict()[name], value) for name, value in once.items())


def test_recalibration_brings_a_disturbed_model_back() -> None:
    """Scaling a convolution changes nothing once the norm behind it knows."""
    model, batches = small_resnet(), images()
    recalibrate_batchnorm(model, batches)
    disturbed = copy.deepcopy(model)
    with torch.no_grad():
        disturbed.layer1[0].conv1.weight *= 5
        expected, broken = model(batches[0][0]), disturbed(batches[0][0])
        recalibrate_batchnorm(disturbed, batches)
        found = disturbed(batches[0][0])
    assert (broken - expected).abs().max() > 0.1
    assert torch.allclose(found, expected, atol=1e-4)


def test_a_model_without_batchnorm_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    before = copy.deepcopy(model.state_dict())
    recalibrate_batchnorm(model, [])
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([], ValueError, "Expected at least one batch to estimate BatchNorm statistics on, but there was none"),
        ([images()[0], (torch.zeros(2, 5, 8, 8),)], RuntimeError, "channels"),
        ([images()[0], (images()[0][0] * torch.nan,)], ValueError, "running_mean of 'bn1' came out as NaN or infinite"),
        (
            [(images()[0][0] * torch.inf,)],
            ValueError,
            "Expected finite BatchNorm statistics, but running_mean of 'bn1'",
        ),
    ],
)
def test_a_failure_changes_nothing(batches: list[tuple[Tensor, ...]], error: type[Exception], message: str) -> None:
    model = small_resnet()
    before = copy.deepcopy(model)
    with pytest.raises(error, match=message):
        recalibrate_batchnorm(model, batches)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.state_dict().items())
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    assert model.bn1.momentum == before.bn1.momentum
