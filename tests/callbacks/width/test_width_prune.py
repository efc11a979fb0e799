"""WidthPrune inside a Trainer: narrowing, multiples, training, reconstruction, and averages of the weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.width.width_prune import HALF, IMAGE, Classifier, Direct, fit, left, prune, rows, trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, WeightAveraging
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from prunerecover import Budget, Plan, load_pruned, plan_width
from prunerecover.callbacks import DepthPrune, WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.cost.macs import count_macs


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Classifier]:
    """A fit of three epochs with a surgery at the start of the second."""
    folder = tmp_path_factory.mktemp("halved")
    return folder, fit(folder, prune())


def test_half_goes_and_training_goes_on(halved: tuple[Path, Classifier]) -> None:
    folder, module = halved
    assert 0.46 < left(module) <= 0.5
    event = Ledger.of(module).events[0]
    assert event.by == "WidthPrune.0"
    assert event.epoch == 1
    assert all(p.requires_grad for p in module.net.parameters())
    plan = Plan.load(folder / "files" / "plan.json")
    assert plan.removed["channel"]
    files = load_pruned(folder / "files" / "pruned", model=Classifier().net)
    images = next(iter(rows(False)))[0]
    assert torch.equal(files.eval()(images), module.net.eval()(images))


def test_less_pruned_files_are_tested_as_they_were(halved: tuple[Path, Classifier], tmp_path: Path) -> None:
    module, runner = Classifier(), trainer(tmp_path, prune())

    def tested(file: str) -> object:
        return runner.test(module, rows(False), ckpt_path=halved[0] / "files" / file, weights_only=False)[0]

    live = tested("last.ckpt")
    assert left(module) <= 0.5
    dense = tested("epoch=0.ckpt")
    assert left(module) == 1.0
    assert tested("last.ckpt") == live != dense
    assert left(module) <= 0.5


def layers() -> DepthPrune:
    return DepthPrune(remove={"layer": 1}, calibration=48, schedule={"start": 1})


@pytest.mark.parametrize("make", [lambda: prune(calibration=48), pytest.param(layers, marks=pytest.mark.slow)])
def test_batchnorm_is_recalibrated_at_the_surgery(make: Any, tmp_path: Path) -> None:
    """Right after the surgery, statistics are the pruned network's on the calibration samples."""
    module = fit(tmp_path, make(), limit_train_batches=1, epochs=2)
    assert Ledger.of(module).events
    assert int(module.net.bn1.num_batches_tracked) == 4 + 1  # four calibration batches, one training step since


@pytest.mark.slow
@pytest.mark.parametrize("amount", [False, True])
def test_schedule_divides_the_budget(tmp_path: Path, amount: bool) -> None:
    """Half of the MACs, as a share or as a remaining amount."""
    full = count_macs(Classifier().net, IMAGE)
    budget = Budget(macs=f"{full / 2e3}K" if amount else 0.5)
    module = fit(tmp_path, prune(budget=budget, schedule={"start": 0, "every": 1, "times": 3}))
    events = Ledger.of(module).events
    assert [event.epoch for event in events] == [0, 1, 2]
    shares = [1 - event.macs / full for event in events]
    assert shares == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=0.04)


def test_surgeries_do_not_take_what_others_took_beyond_their_part(tmp_path: Path) -> None:
    """Each of four surgeries needs half a neuron, and removes at least one."""
    pl.seed_everything(1, verbose=False)
    module = Classifier()
    module.net = nn.Sequential(nn.Flatten(), nn.Linear(768, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False))
    steps = prune(budget=Budget(macs=0.25), schedule={"every": 1, "times": 4})
    with pytest.warns(UserWarning, match="WidthPrune.0 removed nothing"):
        trainer(tmp_path, steps, epochs=4).fit(module, rows())
    assert [len(event.units) for event in Ledger.of(module).events] == [1, 0, 1, 0]
    assert module.net[1].out_features == 6


@pytest.mark.slow
def test_tolerance_without_a_budget(tmp_path: Path) -> None:
    module = fit(tmp_path, WidthPrune(tolerance=0.3, allocation="fair_pruner", calibration=24))
    assert left(module) < 1
    assert Ledger.of(module).plans["net"].evidence["tolerance"] == 0.3


def test_given_plan_is_applied_before_test(tmp_path: Path) -> None:
    module = Classifier()
    plan = plan_width(module.net, HALF, batches=list(rows(False)))
    with pytest.warns(UserWarning, match="without recalibrating BatchNorm, whose statistics are still those"):
        trainer(tmp_path, WidthPrune(plan=plan)).test(module, rows(False), verbose=False)
    assert left(module) <= 0.5


def test_labels_of_unusual_batches(tmp_path: Path) -> None:
    """The batch is a mapping with other names; the U-Score gets a function for the labels."""

    class Mapped(Classifier):
        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            return F.cross_entropy(self.net(batch["pixels"]), batch["species"])

    loader = DataLoader([{"pixels": x, "species": y} for x, y in rows(False).dataset], batch_size=12)
    callback = WidthPrune(HALF, allocation="fair_pruner", labels=lambda batch: batch["species"], calibration=24)
    module = Mapped()
    trainer(tmp_path, callback, epochs=1).fit(module, loader)
    assert left(module) <= 0.5


@pytest.mark.slow
def test_the_module_itself_is_the_network(tmp_path: Path) -> None:
    images, files = next(iter(rows(False)))[0], tmp_path / "files"
    whole, resumed = Direct(), Direct()
    trainer(tmp_path, prune(target="")).fit(whole, rows(False), rows(False))
    assert whole.conv.out_channels == whole.norm.num_features == whole.head.in_features == 4
    again = trainer(tmp_path / "again", prune(target=""))
    again.fit(resumed, rows(False), rows(False), ckpt_path=files / "epoch=1.ckpt", weights_only=False)
    expected = whole.eval()(images)
    loaded = load_pruned(files / "last.ckpt", Direct), load_pruned(files / "pruned", Direct())
    for module in (resumed, *loaded):
        assert torch.equal(module.eval()(images), expected)
    with pytest.raises(TypeError, match="but got a LightningModule instance"):
        load_pruned(files / "pruned", Classifier())


def test_last_batch_of_one_sample_is_not_recalibrated_on(tmp_path: Path) -> None:
    class Features(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(768, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))

    module = Features()
    trainer(tmp_path, prune(calibration=13), epochs=2).fit(module, rows(), rows(False))
    assert module.net[1].out_features < 16


def test_runs_from_before_there_were_multiples_go_on() -> None:
    """The signature in old checkpoints does not name multiples, and a different multiple means a different run."""
    assert "round_to" not in prune().planning.deciding
    assert prune(round_to=8).planning.deciding["round_to"] == 8


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
    for reconstruct, said in (
        (True, r"reconstructed \(output divergence: as it is [\d.]+, reconstructed [\d.e-]+\)"),
        ("blocks", r"3 blocks reconstructed \(error of the last hidden states: [\d.]+ to [\d.]+\)"),
        (False, ""),
    ):
        before, after = Seen(), Seen()
        narrow = prune(reconstruct=reconstruct, calibration=48, allocation="uniform", replace="zero")
        module = fit(tmp_path / str(reconstruct), before, narrow, after, network="vit", epochs=2)
        (event,) = Ledger.of(module).events
        assert re.fullmatch(said, event.kept)
        assert event.to_dict().get("kept", "") == event.kept
        errors[reconstruct] = float((before.outputs[1] - after.outputs[1]).square().mean())
    assert max(errors[True], errors["blocks"]) < 0.8 * errors[False]


@pytest.mark.parametrize(
    ("network", "reconstruct", "fitted"),
    [("cnn", None, True), ("cnn", False, False), ("vit", None, False), ("vit", True, True), ("vit", "blocks", True)],
)
def test_networks_with_batchnorm_are_reconstructed(network: str, reconstruct: Any, fitted: bool) -> None:
    dense = Classifier(network).net
    plan = plan_width(dense, HALF, batches=[next(iter(rows()))], importance="magnitude", replace="zero")
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
