"""Planning that is interrupted says what is kept, keeps it, and scores none of it again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.depth.interrupted import Interrupts
from torch import nn

from prunerecover import Plan, plan_depth
from prunerecover.store.search_store import results_in

IMAGES = torch.randn(12, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class Convs(nn.Sequential):
    """Convolutions of one width, counted pass by pass; one of the passes may be interrupted."""

    passes, until = 0, -1

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [part for i in range(4) for part in (nn.Conv2d(8 if i else 3, 8, 3, padding=1), nn.ReLU())]
        super().__init__(*layers, nn.Flatten(), nn.Linear(8 * 6 * 6, 5))
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Convs.passes += 1
        if Convs.passes == Convs.until:
            Convs.until = -1
            raise KeyboardInterrupt
        return super().forward(x)


def planned(network: nn.Module, **how: Any) -> Plan:
    return plan_depth(network, remove={"layer": 1}, batches=list(IMAGES.split(4)), **how)


def same(one: Plan, other: Plan) -> bool:
    return one == other and all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


def counted(network: nn.Module, until: int = -1, **how: Any) -> int:
    """Plan, and return the number of passes; raise KeyboardInterrupt at one of them."""
    Convs.passes, Convs.until = 0, until
    planned(network, **how)
    return Convs.passes


@pytest.mark.slow
def test_interrupted_at_any_pass_it_goes_on_behind_the_last_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "prunerecover")
    interrupts, network = Interrupts(monkeypatch), Convs()
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    passes = counted(network)
    whole = planned(network)
    interrupts.begin()
    counted(network, store=tmp_path / "whole")
    results = interrupts.computed
    for until in (passes * 2 // 3, passes * 5 // 6):
        store = tmp_path / f"interrupted_{until}"
        with pytest.raises(KeyboardInterrupt):
            counted(network, until, store=store)
        found = results_in(store)
        assert 0 < found < results
        assert caplog.messages[-1] == (
            f"prunerecover: interrupted, with {found} result{'s' * (found > 1)} in {store}. Run this again to go on."
        )
        assert all(torch.equal(value, weights[name]) for name, value in network.state_dict().items())
        interrupts.begin()
        assert counted(network, store=store) < passes
        assert interrupts.computed == results - found
        assert same(planned(network, store=store), whole)


def test_without_a_store_nothing_is_said_to_be_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "prunerecover")
    with pytest.raises(KeyboardInterrupt):
        counted(Convs(), 20)
    assert not caplog.messages
