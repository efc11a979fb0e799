"""After WidthPrune's surgery layers are reconstructed, and averages of the weights move along."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.width.width_prune import HALF, Classifier, fit, prune, rows
from lightning.pytorch.callbacks import EMAWeightAveraging, WeightAveraging
from torch import Tensor

from prunerecover import Plan, plan_width
from prunerecover.callbacks.ledger.ledger import Ledger


class Seen(pl.Callback):
    """Keeps the network's output at the start of each epoch."""

    def __init__(self) -> None:
        self.outputs: list[Tensor] = []

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        mode = pl_module.net.training
        with torch.no_grad():
            self.outputs.append(pl_module.net.eval()(next(iter(rows(False)))[0]))
        pl_module.net.train(mode)


@pytest.mark.slow
def test_layers_are_reconstructed_after_the_surgery(tmp_path: Path) -> None:
    errors = {}
    for reconstruct in (True, False):
        before, after = Seen(), Seen()
        narrow = prune(reconstruct=reconstruct, calibration=48, allocation="uniform", replace="zero")
        module = fit(tmp_path / str(reconstruct), before, narrow, after, network="vit", epochs=2)
        (event,) = Ledger.of(module).events
        way = r"reconstructed \(output divergence: as it is [\d.]+, reconstructed [\d.e-]+\)"
        said = way if reconstruct else ""
        assert re.fullmatch(said, event.kept)
        assert event.to_dict().get("kept", "") == event.kept
        errors[reconstruct] = float((before.outputs[1] - after.outputs[1]).square().mean())
    assert errors[True] < 0.8 * errors[False]


@pytest.mark.parametrize(
    ("network", "reconstruct", "fitted"),
    [("cnn", None, True), ("cnn", False, False), ("vit", None, False), ("vit", True, True)],
)
def test_networks_with_batchnorm_are_reconstructed(network: str, reconstruct: bool | None, fitted: bool) -> None:
    dense = Classifier(network).net
    plan = plan_width(dense, HALF, batches=[next(iter(rows()))])
    recovery = prune(reconstruct=reconstruct).recovery
    assert recovery.fits(dense, plan) == fitted
    assert (recovery.keep(dense, plan) is not None) == (fitted or network == "cnn")  # statistics are judged, too
    assert recovery.keep(dense, Plan()) is None


class Averaged(pl.Callback):
    """Keeps the parameters and buffers of the network and of the average right after the surgery."""

    def __init__(self, average: WeightAveraging) -> None:
        self.average, self.pairs = average, dict[str, tuple[Tensor, Tensor]]()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        copies = self.average._average_model.module.net.state_dict()
        live = pl_module.net.state_dict()
        self.pairs = {name: (live[name].clone(), copies[name].clone()) for name in live}


@pytest.mark.slow
def test_averages_move_along_with_reconstruction(tmp_path: Path) -> None:
    """An average equals the network before the surgery, and again after the surgery."""
    average = WeightAveraging(avg_fn=lambda averaged, current, n: current)
    seen = Averaged(average)
    fit(tmp_path, average, prune(), seen, epochs=2)
    assert seen.pairs
    for live, averaged in seen.pairs.values():
        torch.testing.assert_close(live, averaged)


@pytest.mark.slow
@pytest.mark.parametrize("reconstruct", [True, False])
def test_averages_take_the_statistics_that_were_estimated_anew(reconstruct: bool, tmp_path: Path) -> None:
    """The dense network's statistics would persist in the averages for thousands of steps."""
    average = EMAWeightAveraging(decay=0.999)
    seen = Averaged(average)
    fit(tmp_path, average, prune(reconstruct=reconstruct), seen, epochs=2)
    running = [name for name in seen.pairs if "running" in name]
    assert running
    for name in running:
        assert torch.equal(*seen.pairs[name]), name
    assert not torch.equal(*seen.pairs["linear.weight"])
