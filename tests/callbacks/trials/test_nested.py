"""The start of a fit inside a command: nothing is trained, and the module stays as it was."""

from __future__ import annotations

import logging
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.models.habits import Plain
from torch.utils.data import DataLoader

from prunerecover.callbacks.trials.nested import at_start_of_fit, quiet
from prunerecover.recipes.data.digits import DigitsData


def test_start_of_a_fit_trains_nothing_and_leaves_the_module_alone() -> None:
    module, data = Plain(), DigitsData()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    seen: list[pl.LightningModule] = []

    def look(trainer: pl.Trainer, copied: pl.LightningModule) -> int:
        seen.append(copied)
        assert trainer.optimizers
        assert trainer.state.fn == "fit"
        torch.rand(3)
        return trainer.global_step

    assert at_start_of_fit(module, data, look) == 0
    (copied,) = seen
    assert copied is not module
    assert all(torch.equal(value, copied.state_dict()[name]) for name, value in before.items())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert module._trainer is None


def test_no_fit_starts_without_training_data() -> None:
    class Empty(DigitsData):
        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader([])

    with pytest.raises(ValueError, match="Expected training data for Plain, but its train dataloader has no batch"):
        at_start_of_fit(Plain(), Empty(), lambda trainer, module: 0)


def test_an_interrupt_while_a_trial_starts_leaves_the_console_as_loud_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else what says how to go on would not be shown."""
    log = logging.getLogger("lightning.pytorch")
    level, set_level = log.level, log.setLevel

    def interrupted(wanted: int) -> None:
        set_level(wanted)
        if wanted == logging.WARNING:
            raise KeyboardInterrupt

    monkeypatch.setattr(log, "setLevel", interrupted)
    with pytest.raises(KeyboardInterrupt), quiet():
        pass
    assert log.level == level
