"""DepthPrune and DistillRecover on LightningModules with users' typical habits."""

from __future__ import annotations

import copy
import pickle

import lightning.pytorch as pl
import peft
import pytest
import torch
from cases.models.habits import (
    Adversarial,
    BatchOnly,
    BuiltLate,
    Iterating,
    Manual,
    OwnHooks,
    Plain,
    TwoNetworks,
    TwoOptimizers,
    Watched,
    Wrapped,
    WrappedCompiled,
    dataset,
    loader,
    tiny_vit,
    tokens,
)
from cases.sampling import one_in
from cases.trainers import REMOVE, assert_same, every_epoch, fit, prune, trainer_of
from lightning.pytorch.callbacks import ModelCheckpoint

from prunerecover import find_units, load_pruned
from prunerecover.callbacks import DistillRecover
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.model.paths import unwrap

EAGER = [Manual, TwoOptimizers, Adversarial, BuiltLate, OwnHooks, Watched, BatchOnly, Iterating]


@pytest.mark.parametrize("make", [*one_in(2, EAGER), pytest.param(WrappedCompiled, marks=pytest.mark.slow)])
def test_habits(tmp_path, make):
    """Units are removed, the network trains on, and the checkpoint opens in a fresh module with the same outputs."""
    module = make()
    runner = fit(tmp_path, module, prune(), DistillRecover())
    ((target, plan),) = Ledger.of(module).plans.items()
    assert target == "net"
    assert {kind: len(names) for kind, names in plan.removed.items()} == REMOVE
    held = {p for optimizer in runner.optimizers for group in optimizer.param_groups for p in group["params"]}
    assert held == set(module.parameters())
    images = dataset().tensors[0]
    file = tmp_path / "last.ckpt"
    runner.save_checkpoint(file)
    fresh = make()
    trainer_of(tmp_path, prune()).validate(fresh, loader(shuffle=False), ckpt_path=file, verbose=False)
    assert torch.equal(unwrap(fresh.net).eval()(images), unwrap(module.net).eval()(images))
    assert torch.equal(load_pruned(file)(images), unwrap(module.net)(images))


def test_wrapped_transformers_model(tmp_path):
    """With keyword arguments and whole blocks removed, the model stays standard."""
    module = Wrapped()
    remove = {"block": 1, "attention": 1}
    fit(tmp_path, module, prune(remove=remove), DistillRecover(features=True), data=tokens())
    assert {kind: len(names) for kind, names in Ledger.of(module).plans["lm"].removed.items()} == remove
    assert module.lm.config.num_hidden_layers == 3
    attentions = [layer.self_attn for layer in module.lm.model.layers]
    assert [attention.layer_idx for attention in attentions if hasattr(attention, "layer_idx")] == [0, 1]


def test_the_other_of_two_networks_is_pruned(tmp_path):
    module = TwoNetworks()
    fit(tmp_path, module, prune(target="other"))
    assert list(Ledger.of(module).plans) == ["other"]
    assert len(find_units(module.net)) == 12


def test_own_checkpoint_hooks_still_run(tmp_path):
    module = OwnHooks()
    fit(tmp_path, module, prune(), ModelCheckpoint(tmp_path, filename="{epoch}"))
    assert module.calls == ["save", "save"]
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["epoch=1.ckpt"]  # the one of epoch 0 is replaced as ever
    assert torch.load(tmp_path / "epoch=1.ckpt", weights_only=True)["mine"] == {"epochs": 1}
    fresh = OwnHooks()
    trainer_of(tmp_path, prune()).validate(fresh, loader(), ckpt_path=tmp_path / "epoch=1.ckpt", verbose=False)
    assert fresh.calls == ["load"]


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (Plain, {"precision": "bf16-true"}),
        pytest.param(Manual, {"precision": "bf16-mixed"}, marks=pytest.mark.slow),
        (Plain, {"epochs": -1, "max_steps": 9}),
        pytest.param(Plain, {"reload_dataloaders_every_n_epochs": 1}, marks=pytest.mark.slow),
    ],
)
def test_habits_of_trainers(tmp_path, make, settings):
    module = make()
    fit(tmp_path, module, prune(), DistillRecover(), **settings)
    assert Ledger.of(module).events
    dtype = torch.bfloat16 if settings.get("precision") == "bf16-true" else torch.float32
    assert {p.dtype for p in module.parameters()} == {dtype}


def test_pruned_module_pickles_and_copies(tmp_path):
    module = Plain()
    fit(tmp_path, module, prune(), DistillRecover(features=True))
    images = dataset().tensors[0]
    expected = module.eval().net(images)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other.net(images), expected)
        ledger = Ledger.of(other)
        assert ledger is not Ledger.of(module)
        assert other.on_save_checkpoint.module is other
        ledger.restore(other, None)
        assert len(find_units(other.net)) == 12
    assert len(find_units(module.net)) < 16


def test_second_fit_with_the_same_callback_goes_on(tmp_path):
    module, callback = Plain(), prune()
    runner = fit(tmp_path, module, callback)
    runner.fit_loop.max_epochs = 4
    runner.fit(module, loader())
    fit(tmp_path, module, callback)
    assert len(Ledger.of(module).events) == 1


@pytest.mark.slow
def test_second_fit_with_a_new_callback_prunes_again(tmp_path):
    """A loop of fits with a removal each; the second fit resumes from before and after the surgery."""
    module = Plain()
    fit(tmp_path, module, prune())
    start = copy.deepcopy(module)
    fit(tmp_path, module, prune(), every_epoch(tmp_path / "files"), epochs=3)
    assert [event.epoch for event in Ledger.of(module).events] == [1, 1]
    assert len(find_units(module.net)) == 12 - 4
    for epoch in (0, 1):
        again = copy.deepcopy(start) if epoch else Plain()
        fit(tmp_path, again, prune(), epochs=3, resume=tmp_path / "files" / f"epoch={epoch}.ckpt")
        assert_same(module, again)


def test_distillation_goes_on_in_a_second_fit(tmp_path):
    """The teacher is the dense network from before the first surgery, although another Trainer saved it."""
    module = Plain()
    fit(tmp_path / "first", module, prune(), DistillRecover())
    logged = fit(tmp_path / "second", module, DistillRecover(), epochs=1)
    assert "distillation_loss" in logged.callback_metrics


def test_recovery_without_depth_prune_resumes_bitwise(tmp_path):
    """Whoever reads the ledger puts optimizers and random states in order."""
    module = Plain(epochs=3)
    fit(tmp_path, module, prune(), DistillRecover(), every_epoch(tmp_path), epochs=3)
    again = Plain(epochs=3)
    fit(tmp_path / "again", again, DistillRecover(), epochs=3, resume=tmp_path / "epoch=1.ckpt")
    assert_same(module, again)


def test_a_teacher_of_the_users_own_is_not_pruned(tmp_path):
    """A copy of the module in a callback is a shadow copy only on declaration."""

    class Own(pl.Callback):
        def __init__(self):
            self.teacher, self.ema_module = Plain(), Plain()

    own, module = Own(), Plain()
    fit(tmp_path, module, own, prune())
    assert len(find_units(own.teacher.net)) == 12
    assert len(find_units(own.ema_module.net)) == len(find_units(module.net)) < 16


def test_adapters_are_left_alone(tmp_path):
    """The network inside a peft model is pruned; adapters of remaining weights are kept and train."""

    class Adapted(Plain):
        def __init__(self):
            super().__init__()
            config = peft.LoraConfig(r=2, target_modules=["qkv"], modules_to_save=["head"])
            self.net = peft.get_peft_model(tiny_vit(), config)

    module = Adapted()
    runner = fit(tmp_path, module, prune(remove={"attention": 1}, replace="zero"))
    adapters = [name for name, _ in module.named_parameters() if "lora" in name]
    assert len(adapters) == 2 * 2
    held = {p for group in runner.optimizers[0].param_groups for p in group["params"]}
    assert {p for p in module.parameters() if p.requires_grad} <= held <= set(module.parameters())
