"""Refusals of a resumed run (teachers, optimizers and checkpoints that do not fit), and sharded strategies."""

from __future__ import annotations

import warnings

import pytest
import torch
from cases.models.habits import Filtered, Plain, dataset, loader, tiny_vit
from cases.refusals import plan_for_plain
from cases.trainers import assert_same, every_epoch, fit, prune, sharded, trainer_of
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from safetensors.torch import save_file
from torch import nn

from prunerecover import Budget, Plan, plan_width, save_pruned
from prunerecover.callbacks import DepthPrune, DistillRecover, WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger


def pruned_run(folder, *callbacks):
    fit(folder, Plain(), prune(), *callbacks, every_epoch(folder), epochs=3)
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the folder of a run without a teacher."""
    return pruned_run(tmp_path_factory.mktemp("run"))


def resume(folder, files, *callbacks, module=None):
    trainer_of(folder, *callbacks, epochs=3).fit(module or Plain(), loader(), ckpt_path=files / "epoch=1.ckpt")


def test_pruned_without_a_teacher(files, tmp_path):
    with pytest.raises(RuntimeError, match=r"none was saved: the model was pruned without Distill.*teacher=path"):
        resume(tmp_path, files, prune(), DistillRecover())


def test_teacher_is_not_that_of_the_run(tmp_path):
    files = pruned_run(tmp_path, DistillRecover())
    (teacher,) = files.glob("teacher-*.safetensors")
    teacher.write_bytes(teacher.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ValueError, match="Expected the teacher that the run was started with at .*, but its sha256 di"):
        resume(tmp_path / "again", files, prune(), DistillRecover())
    teacher.unlink()
    match = "Expected the dense teacher teacher-.* but it is not there. Copy it beside"
    with pytest.raises(FileNotFoundError, match=match):
        resume(tmp_path / "again", files, prune(), DistillRecover())


@pytest.mark.slow
def test_teachers_by_name(tmp_path):
    """A module, a state dict of the dense network, and a saved folder give the same recovery."""
    torch.manual_seed(5)
    teacher, modules = tiny_vit(drop_path_rate=0.2), []
    save_file(teacher.state_dict(), tmp_path / "dense.safetensors")
    for given in (teacher, tmp_path / "dense.safetensors", save_pruned(teacher, Plan(), tmp_path / "dense")):
        torch.manual_seed(1)
        modules.append(Plain())
        fit(tmp_path / "run", modules[-1], prune(), DistillRecover(teacher=given))
    for module in modules[1:]:
        assert_same(module, modules[0])


class OtherNames(Plain):
    def __init__(self):
        super().__init__()
        self.extra = nn.Parameter(torch.zeros(1))

    def loss(self, batch):
        return super().loss(batch) + self.extra.sum()


def test_resumed_with_other_optimizers(files, tmp_path):
    match = r"Expected optimizers with \[2\] parameter groups, as in the checkpoint, but configure_opt.* made \[1\]"
    with pytest.raises(RuntimeError, match=match):
        resume(tmp_path, files, prune(), module=Filtered())


def test_resumed_with_parameters_of_another_name(tmp_path):
    module = OtherNames()
    fit(tmp_path, module, prune(), every_epoch(tmp_path))
    file = tmp_path / "epoch=1.ckpt"
    content = torch.load(file, weights_only=True)
    del content["state_dict"]["extra"]
    torch.save(content, file)
    with pytest.raises(RuntimeError, match="Expected parameter 'extra' of the checkpoint's optimizer in Plain, but it"):
        resume(tmp_path / "again", tmp_path, prune())


def test_checkpoint_of_another_network(files, tmp_path):
    module = Plain(depth=4)
    before = repr(module)
    with pytest.raises(ValueError, match="Expected the model that the plan was made for .* this model has 4 blocks"):
        trainer_of(tmp_path, prune()).test(module, loader(), ckpt_path=files / "epoch=1.ckpt", verbose=False)
    assert repr(module) == before


def test_dense_checkpoint_of_another_run_undoes_the_surgery(tmp_path):
    dense, module = Plain(), Plain()
    runner = fit(tmp_path / "dense", dense)
    runner.save_checkpoint(tmp_path / "dense.ckpt")
    runner = fit(tmp_path, module, prune())
    with pytest.warns(UserWarning, match="nothing is pruned now"):
        runner.test(module, loader(), ckpt_path=tmp_path / "dense.ckpt", verbose=False)
    images = dataset().tensors[0]
    assert torch.equal(module.net.eval()(images), dense.net.eval()(images))


@pytest.fixture
def strategy():
    return FSDPStrategy.__new__(FSDPStrategy)


@pytest.mark.parametrize("cls", [FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy])
def test_sharding_without_a_plan(cls):
    strategy, module, callback = cls.__new__(cls), Plain(), prune(schedule={})
    match = rf"Expected DepthPrune\(plan=...\) with {type(strategy).__name__}, which shards the model before"
    with pytest.raises(ValueError, match=match):
        callback.setup(sharded(strategy, callback), module, "fit")
    assert not Ledger.of(module).plans


def test_sharding_with_a_later_surgery(strategy):
    module, callback = Plain(), DepthPrune(plan=plan_for_plain(replace="identity"), schedule={"start": 1})
    with pytest.raises(ValueError, match="schedule start=0 with .*, but got 1. Train the dense model in a fit"):
        callback.setup(sharded(strategy, callback), module, "fit")
    assert not Ledger.of(module).plans


def test_sharding_with_a_plan_prunes_once(strategy):
    first, second = plan_for_plain(replace="identity"), plan_for_plain(replace="identity")
    module = Plain()
    callback = DepthPrune(plan=first)
    trainer = sharded(strategy, callback)
    callback.setup(trainer, module, "fit")
    callback.setup(trainer, module, "test")
    assert Ledger.of(module).plans["net"].edits == second.edits
    assert not callback._due_surgeries(trainer, module)


def narrowing(strategy, **arguments):
    module = Plain()
    module.net = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 4, 3)).eval()
    batch = torch.randn(8, 1, 8, 8)
    plan = plan_width(module.net, Budget(macs=0.3), batches=[batch], loss=lambda net, x: net(x).square().mean())
    callback = WidthPrune(plan=plan, **arguments)
    return module, callback, sharded(strategy, callback)


def test_sharding_leaves_batchnorm_as_it_was_and_says_so_unless_a_checkpoint_is_read(strategy):
    module, callback, trainer = narrowing(strategy)
    callback.setup(trainer, module, "fit")
    assert module.net[0].out_channels < 8
    with pytest.warns(UserWarning, match="without recalibrating BatchNorm, .* and without reconstruction: scores will"):
        callback.on_train_start(trainer, module)
    module, callback, trainer = narrowing(strategy)
    callback.setup(trainer, module, "fit")
    Ledger.of(module).from_checkpoint = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        callback.on_train_start(trainer, module)


def test_reconstruction_before_sharding_is_refused(strategy):
    module, callback, trainer = narrowing(strategy, reconstruct=True)
    with pytest.raises(ValueError, match=r"no reconstruct=True with \w+Strategy, which shards the model before"):
        callback.setup(trainer, module, "fit")
    assert module.net[0].out_channels == 8
    callback.setup(trainer, module, "test")
    assert module.net[0].out_channels < 8
