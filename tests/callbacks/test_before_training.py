"""Problems visible before training are reported before training."""

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
from prunerecover.callbacks import DepthPrune, WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.model.untrained import looks_untrained

CHANCE = "prunes VisionTransformer as it was initialised"


@pytest.mark.slow
@pytest.mark.parametrize(("callback", "budget"), [(WidthPrune, {"macs": 0.99}), (DepthPrune, {"params": 0.99})])
def test_the_message_is_that_of_the_surgery(callback: type, budget: dict[str, float], tmp_path: Path) -> None:
    told = []
    for start in (0, 1):
        with pytest.raises(ValueError, match="Expected") as caught:
            fit(tmp_path, Plain(), callback(Budget(**budget), calibration=8, schedule=start))
        told.append(str(caught.value))
    assert told[0] == told[1]


def test_a_budget_of_what_another_surgery_leaves_is_not_judged_before_it(tmp_path: Path) -> None:
    """The share refers to the network after the other surgery."""
    others = DepthPrune(remove={"attention": 1}, calibration=8, schedule=1)
    module = Plain()
    with pytest.raises(ValueError, match="the groups can meet"):
        fit(tmp_path, module, others, WidthPrune(Budget(macs=0.95), calibration=8, schedule=2), epochs=3)
    assert len(Ledger.of(module).events) == 1


@pytest.mark.parametrize("schedule", [0, 1])
def test_an_untrained_network(tmp_path: Path, schedule: int) -> None:
    """Warned about once, if pruned before any training."""
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
