"""Narrowing in the middle of a fit: everything that pairs parameters follows."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
import torch
from cases import trainers
from cases.models.habits import dataset, loader
from cases.trainers import every_epoch
from cases.width.narrow import first_conv
from cases.width.narrow_fits import CNN, Cnn, NarrowAt
from cases.width.narrow_models import SmallCnn
from lightning.pytorch.callbacks import EMAWeightAveraging, StochasticWeightAveraging

from prunerecover import load_pruned
from prunerecover.callbacks.surgery.in_trainer import apply_in_trainer
from prunerecover.surgery.provenance import plan_for


def fit(folder, *callbacks, make=Cnn, edits=CNN, **trainer):
    """Narrow and train; checkpoints of every epoch lie in the folder."""
    module = make()
    settings = {"val": loader(shuffle=False), "epochs": 4, **trainer}
    return module, trainers.fit(folder, module, NarrowAt(edits), *callbacks, every_epoch(folder), **settings)


class Moments(pl.Callback):
    """Keeps the optimizer's state at the end of the first epoch and right after the first surgery."""

    def __init__(self):
        self.seen = {}

    def on_train_epoch_end(self, trainer, pl_module):
        self.seen.setdefault("before", self.state(trainer, pl_module))

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch == 1:
            self.seen.setdefault("after", self.state(trainer, pl_module))

    @staticmethod
    def state(trainer, pl_module):
        (optimizer,) = trainer.optimizers
        names = {p: name for name, p in pl_module.net.named_parameters()}
        return {names[p]: {k: v.clone() for k, v in s.items()} for p, s in optimizer.state.items()}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Return a fitted module, its Trainer, the folder of its checkpoints, and moments."""
    folder, moments = tmp_path_factory.mktemp("fit"), Moments()
    module, runner = fit(folder, moments)
    return module, runner, folder, moments.seen


def test_moments_are_cut_and_steps_go_on(fitted):
    """Without them, the optimizer would start from scratch at every surgery."""
    module, runner, _, seen = fitted
    keep = list(first_conv().keep)
    for name, index in (("conv1.weight", (keep,)), ("conv2.weight", (slice(None), keep)), ("head.bias", ())):
        before, after = seen["before"][name], seen["after"][name]
        for moment in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(after[moment], before[moment][index])
        assert after["step"] == before["step"] == 6
    (optimizer,) = runner.optimizers
    held = {p for group in optimizer.param_groups for p in group["params"]}
    assert held == set(optimizer.state) == set(module.parameters())
    assert all(p.ndim > 1 for p in optimizer.param_groups[0]["params"])


@pytest.mark.parametrize(
    "average",
    [lambda: EMAWeightAveraging(decay=0.5), lambda: StochasticWeightAveraging(1e-3, swa_epoch_start=1)],
    ids=["ema", "swa"],
)
def test_averaged_copies_follow(tmp_path, average):
    callback, shapes = average(), []

    class Look(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            averaged = callback._average_model
            averaged = getattr(averaged, "module", averaged)
            shapes.append([p.shape for p in averaged.parameters()] == [p.shape for p in pl_module.parameters()])

    module, _ = fit(tmp_path, callback, Look())
    assert len(shapes) >= 24  # at the end SWA runs through the data once more, for BatchNorm
    assert all(shapes)
    assert module.net(dataset().tensors[0]).shape == (48, 4)
    assert module.net.conv1.out_channels == 4


def test_checkpoints_open_without_the_run(fitted, tmp_path):
    module, runner, folder, *_ = fitted
    images, expected = dataset().tensors[0], module.net.eval()(dataset().tensors[0])
    runner.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    for path in (folder / "epoch=3.ckpt", tmp_path / "weights.ckpt"):
        assert torch.equal(load_pruned(path, SmallCnn(in_channels=1, classes=4))(images), expected)
        assert torch.equal(load_pruned(path, Cnn).eval().net(images), expected)
    with pytest.raises(ValueError, match="a plan with the constructor of its dense model"):
        load_pruned(path)


def test_plan_for_another_network_changes_nothing(tmp_path):
    class Wrong(NarrowAt):
        def on_train_epoch_start(self, trainer, pl_module):
            plan = plan_for(SmallCnn(), [first_conv()], method="test")
            with pytest.raises(ValueError, match="this model's tensors have other names or sizes"):
                apply_in_trainer(trainer, pl_module, "net", plan)

    module = Cnn()
    runner = trainers.fit(tmp_path, module, Wrong({}), epochs=1)
    assert module.net.conv1.out_channels == 8
    assert set(runner.optimizers[0].state) == set(module.parameters())
