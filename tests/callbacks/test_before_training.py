"""What can be known before training is refused, or said, before training."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from cases.models.habits import Plain, tiny_vit
from cases.models.tiny import stir
from cases.trainers import fit, prune
from torch import nn

from prunerecover import Budget
from prunerecover.callbacks import DepthPrune, DistillRecover, WidthPrune
from prunerecover.model.untrained import looks_untrained

CHANCE = "prunes VisionTransformer as it was initialised"


class Untouched(Plain):
    """Fails as soon as it is trained."""

    def on_train_epoch_start(self) -> None:
        raise AssertionError("training began")


def test_patterns_that_match_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected argument ignore to match units such as .*, but 'layers.*' matches"):
        fit(tmp_path, Untouched(), prune(ignore=["layers.*"]))


def test_more_units_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected at most 4 units of kind 'attention' to remove, but got 9"):
        fit(tmp_path, Untouched(), prune(remove={"attention": 9}))


def test_a_teacher_that_answers_otherwise(tmp_path: Path) -> None:
    teacher = tiny_vit(num_classes=9)
    with pytest.raises(ValueError, match="Expected teacher and student to answer alike, but got shapes"):
        fit(tmp_path, Untouched(), prune(schedule=0), DistillRecover(teacher))


@pytest.mark.parametrize("schedule", [0, 1])
def test_an_untrained_network(tmp_path: Path, schedule: int) -> None:
    """Once it is to be pruned before it was trained at all."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(tmp_path, Plain(), prune(schedule=schedule), limit_train_batches=1)
    assert any(CHANCE in str(warning.message) for warning in caught) == (schedule == 0)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
def test_one_step_is_training(norm: type[nn.Module]) -> None:
    network = nn.Sequential(nn.Linear(3, 4), norm(4))
    assert looks_untrained(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    (network(torch.randn(5, 3)) * torch.randn(5, 4)).sum().backward()
    optimizer.step()
    assert not looks_untrained(network)


def test_networks_that_do_not_say() -> None:
    assert not looks_untrained(nn.Linear(2, 3))
    assert not looks_untrained(stir(tiny_vit()))


def test_each_kind_names_its_callback() -> None:
    with pytest.raises(ValueError, match="but got 'channel'. Channels, heads, neurons and experts go with WidthPrune"):
        DepthPrune(Budget(ratio={"channel": 0.2}))
    with pytest.raises(ValueError, match="blocks, attentions, MLPs and activations go with DepthPrune"):
        WidthPrune(Budget(remove={"block": 1}))


def test_a_network_without_depth_names_width(tmp_path: Path) -> None:
    module = Plain()
    module.net = module.model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"but found none. .* are narrowed by WidthPrune"):
        fit(tmp_path, module, prune())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DistillRecover(alpha="0.5"), "Expected argument alpha to be a number, but got '0.5'"),
        (lambda: DistillRecover(temperature="2"), "Expected argument temperature to be a number, but got '2'"),
        (lambda: prune(calibration="64"), "calibration to be a whole number of samples, but got '64'"),
        (lambda: Budget(macs="0.3"), "Expected a removed share as a number, but got '0.3'"),
    ],
)
def test_strings_are_no_numbers(make: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()
