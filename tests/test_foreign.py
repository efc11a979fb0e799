"""DepthPrune and DistillRecover on LightningModules that know nothing of them, in the habits that people have."""

from __future__ import annotations

import copy
import os
import pickle
import random

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from habits import (
    Adversarial,
    BatchOnly,
    BuiltLate,
    ByName,
    Compiled,
    InTurn,
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
    tokens,
)
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

from prunerecover import Plan, apply_plan, find_units, load_pruned, plan_depth
from prunerecover.callbacks import DepthPrune, DistillRecover
from prunerecover.callbacks.capture import capture_inputs
from prunerecover.callbacks.ledger import Ledger
from prunerecover.structure import unwrap

REMOVE = {"attention": 1, "activation": 1}


def trainer_of(folder, *callbacks, epochs=2, **settings):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return pl.Trainer(max_epochs=epochs, callbacks=list(callbacks), default_root_dir=folder, **{**quiet, **settings})


def prune(**arguments):
    defaults = {"remove": REMOVE, "schedule": {"start": 1}, "calibration": 16, "merge": "never"}
    return DepthPrune(**{**defaults, **arguments})


def fit(folder, module, *callbacks, data=None, **settings):
    pl.seed_everything(3, verbose=False)
    runner = trainer_of(folder, *callbacks, **settings)
    runner.fit(module, loader() if data is None else data)
    return runner


class AtSurgery(pl.Callback):
    """Looks at the module before the surgery of epoch 1 and right after it; goes in front of and behind DepthPrune."""

    def __init__(self, look):
        self.look, self.before, self.after = look, None, None

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == 0:
            self.before = self.look(trainer, pl_module)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch == 1 and batch_idx == 0:
            self.after = self.look(trainer, pl_module)


@pytest.mark.parametrize(
    "make",
    [
        Manual,
        TwoOptimizers,
        Adversarial,
        BuiltLate,
        OwnHooks,
        Watched,
        BatchOnly,
        Iterating,
        pytest.param(Compiled, marks=pytest.mark.slow),
        pytest.param(WrappedCompiled, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("recover", [False, True], ids=["prune", "recover"])
def test_habits(tmp_path, make, recover):
    """Units go, what is left trains on, and the checkpoint opens in a fresh module with the same answers."""
    module = make()
    callbacks = [prune(), DistillRecover()] if recover else [prune()]
    runner = fit(tmp_path, module, *callbacks)
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


@pytest.mark.parametrize("recover", [False, True], ids=["prune", "recover"])
def test_wrapped_transformers_model(tmp_path, recover):
    """Called with keyword arguments; whole blocks go, and the model stays a standard one."""
    module = Wrapped()
    remove = {"block": 1, "attention": 1}
    fit(tmp_path, module, prune(remove=remove), *[DistillRecover(features=True)] * recover, data=tokens())
    assert {kind: len(names) for kind, names in Ledger.of(module).plans["lm"].removed.items()} == remove
    assert module.lm.config.num_hidden_layers == 3
    assert [layer.self_attn.layer_idx for layer in module.lm.model.layers if hasattr(layer.self_attn, "layer_idx")] == [
        0,
        1,
    ]


def test_transformers_model_with_whole_blocks_gone_is_standard(tmp_path):
    module = Wrapped()
    fit(tmp_path, module, prune(remove={"block": 2}), data=tokens())
    module.lm.eval().save_pretrained(tmp_path / "standard")
    same = type(module.lm).from_pretrained(tmp_path / "standard")
    ids = next(iter(tokens()))[0]
    assert torch.equal(same(input_ids=ids).logits, module.lm(input_ids=ids).logits)


def test_two_candidates_ask_for_target(tmp_path):
    module = TwoNetworks()
    before = repr(module)
    with pytest.raises(ValueError, match=r"found 2: net, other. Say which with target='net'"):
        fit(tmp_path, module, prune())
    assert repr(module) == before
    fit(tmp_path, module, prune(target="other"))
    assert list(Ledger.of(module).plans) == ["other"]
    assert len(find_units(module.net)) == 16


def test_one_network_under_two_names_is_one_candidate(tmp_path):
    class Alias(Plain):
        def __init__(self):
            super().__init__()
            self.holder = torch.nn.Sequential(self.net)

    module = Alias()
    fit(tmp_path, module, prune())
    assert list(Ledger.of(module).plans) == ["net"]


def test_two_networks_in_one_module(tmp_path):
    """Each has its own schedule, teacher, plan and merged copy; a resumed run equals an uninterrupted one."""

    def callbacks():
        return [
            prune(target="net", merge="copy"),
            prune(target="other", remove={"activation": 1}, schedule={"start": 2}, merge="copy"),
            DistillRecover(target="net"),
            DistillRecover(target="other"),
            ModelCheckpoint(filename="{epoch}", save_top_k=-1),
        ]

    module = TwoNetworks()
    fit(tmp_path / "whole", module, *callbacks(), epochs=4)
    files = tmp_path / "whole" / "checkpoints"
    assert {path.name for path in (files / "pruned").iterdir()} == {"net", "other"}
    assert {path.stem for path in files.glob("plan*.json")} == {"plan", "plan-other"}
    for epoch in (1, 2):
        again = TwoNetworks()
        runner = trainer_of(tmp_path / f"from{epoch}", *callbacks(), epochs=4)
        runner.fit(again, loader(), ckpt_path=files / f"epoch={epoch}.ckpt")
        assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))


def test_own_checkpoint_hooks_still_run(tmp_path):
    module = OwnHooks()
    fit(tmp_path, module, prune(), ModelCheckpoint(tmp_path, filename="{epoch}"))
    assert module.calls == ["save", "save"]
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["epoch=1.ckpt"]  # the one of epoch 0 is replaced as ever
    assert torch.load(tmp_path / "epoch=1.ckpt", weights_only=True)["mine"] == {"epochs": 1}
    fresh = OwnHooks()
    trainer_of(tmp_path, prune()).validate(fresh, loader(), ckpt_path=tmp_path / "epoch=1.ckpt", verbose=False)
    assert fresh.calls == ["load"]


# Data


def streams():
    """A dataset that is its own iterator: what is taken from it is gone."""

    class Stream(IterableDataset):
        def __init__(self):
            self.left = iter(range(48))

        def __iter__(self):
            return self

        def __next__(self):
            image, label = dataset()[next(self.left)]
            return image, label

    return DataLoader(Stream(), batch_size=8)


def whole_batches():
    """Items are batches already."""
    images, labels = dataset().tensors
    return DataLoader(TensorDataset(images.view(6, 8, 1, 8, 8), labels.view(6, 8)), batch_size=None)


def own_batch_sampler():
    return DataLoader(dataset(), batch_sampler=[[i, i + 1, i + 2, i + 3] for i in range(0, 48, 4)])


def persistent():
    return DataLoader(dataset(), 8, shuffle=True, num_workers=1, persistent_workers=True)


def few():
    return loader(6, batch_size=4)


def odd_and_dropped():
    return DataLoader(dataset(45), 8, shuffle=True, drop_last=True)


def generator_of_its_own():
    return DataLoader(dataset(), 8, shuffle=True, generator=torch.Generator().manual_seed(4))


def batches_in_a_list():
    class Batches:
        def __iter__(self):
            return iter(loader())

        def __len__(self):
            return 6

    return Batches()


@pytest.mark.parametrize(
    "make",
    [
        whole_batches,
        own_batch_sampler,
        odd_and_dropped,
        generator_of_its_own,
        batches_in_a_list,
        pytest.param(persistent, marks=pytest.mark.slow),
    ],
)
def test_calibration_leaves_the_data_alone(tmp_path, make):
    """The batches of a fit that is pruned are those of a fit that is not."""

    class Recorded(Plain):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.batches = [*getattr(self, "batches", []), batch[0]]
            return loss

    pruned, plain = Recorded(), Recorded()
    fit(tmp_path, pruned, prune(), data=make())
    fit(tmp_path, plain, data=make())
    assert Ledger.of(pruned).events
    assert len(pruned.batches) == len(plain.batches)
    assert all(torch.equal(a, b) for a, b in zip(pruned.batches, plain.batches, strict=True))


def test_calibration_takes_nothing_from_a_stream(tmp_path):
    class Counted(Plain):
        taken = 0

        def training_step(self, batch, batch_idx):
            self.taken += len(batch[0])
            return super().training_step(batch, batch_idx)

    module = Counted()
    fit(tmp_path, module, prune(schedule={"start": 0}), data=streams(), epochs=1)
    assert Ledger.of(module).events
    assert module.taken == 48


@pytest.mark.filterwarnings("ignore:Only 6 calibration samples")
def test_fewer_samples_than_asked_for(tmp_path):
    module = Plain()
    fit(tmp_path, module, prune(calibration=500), data=few())
    assert Ledger.of(module).plans["net"].evidence["samples"] == 6


@pytest.mark.parametrize(("make", "data"), [(ByName, {"a": 48, "b": 24}), (InTurn, [48, 24])])
def test_several_dataloaders(tmp_path, make, data):
    loaders = {k: loader(n) for k, n in data.items()} if isinstance(data, dict) else [loader(n) for n in data]
    module = make()
    fit(tmp_path, module, prune(), data=loaders)
    assert Ledger.of(module).plans["net"].evidence["samples"] >= 16


def captured(module, data, n=16, target="net"):
    """Capture at the start of epoch 1 of a fit."""
    found = []

    class Capture(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                found.extend(capture_inputs(trainer, pl_module, target, n, seed=0))

    look = AtSurgery(state_of)
    fit("/nowhere", module, look, Capture(), data=data, enable_checkpointing=False)
    return found, look


def state_of(trainer, module):
    return {
        "weights": {k: v.clone() for k, v in module.state_dict().items()},
        "modes": [m.training for m in module.modules()],
        "flags": [p.requires_grad for p in module.parameters()],
        "random": (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()),
        "seed": os.environ.get("PL_GLOBAL_SEED"),
        "optimizers": [copy.deepcopy(o.state_dict()) for o in trainer.optimizers],
        "attributes": {k: v for k, v in vars(module).items() if k[0] != "_" and isinstance(v, int | float | str)},
        "methods": sorted(k for k, v in vars(module).items() if callable(v)),
    }


@pytest.mark.parametrize("make", [Watched, Manual, TwoOptimizers, Adversarial])
def test_calibration_leaves_the_module_alone(make):
    """Weights, BatchNorm statistics, flags, counters, optimizers, random states, environment: bit for bit."""
    torch.manual_seed(0)
    inputs, look = captured(make(), loader())
    assert sum(i.n_samples for i in inputs) == 16
    torch.manual_seed(0)
    plain = AtSurgery(state_of)
    fit("/nowhere", make(), plain, enable_checkpointing=False)
    with_it, without = look.after, plain.after
    assert all(torch.equal(value, with_it["weights"][name]) for name, value in without["weights"].items())
    assert all(with_it[name] == without[name] for name in without if name not in ("weights", "optimizers"))
    assert str(with_it["optimizers"]) == str(without["optimizers"])


def test_users_loss_and_optimizer_do_not_run_in_calibration(tmp_path):
    module = Watched()
    runner = fit(tmp_path, module, prune(), DistillRecover())
    assert module.started == module.losses == 2 * 6
    assert runner.global_step == 2 * 6


def test_captured_inputs_are_training_samples_with_their_labels():
    module = Plain()
    inputs, _ = captured(module, loader())
    images, labels = dataset().tensors
    for each in inputs:
        for image, label, noisy in zip(*each.batch, each.args[0], strict=True):
            index = int((images == image).flatten(1).all(1).nonzero())
            assert labels[index] == label
            assert 0 < (noisy - image).abs().max() < 1  # what the step makes of it, augmentation included
    assert not any(each.args[0].requires_grad for each in inputs)


def test_a_sampler_that_leaves_samples_out_is_followed():
    """Validation samples in the same dataset are never calibrated on."""
    allowed = list(range(0, 48, 2))
    inputs, _ = captured(Plain(), DataLoader(dataset(), 8, sampler=SubsetRandomSampler(allowed)))
    kept = dataset().tensors[0][allowed]
    assert all((kept == image).flatten(1).all(1).any() for each in inputs for image in each.batch[0])


@pytest.mark.parametrize("importance", ["output_divergence", "gate_gradient"])
def test_step_may_leave_batches_out(tmp_path, importance):
    class Skipping(Plain):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) if batch_idx % 2 else None

    module = Skipping()
    fit(tmp_path, module, prune(importance=importance))
    assert Ledger.of(module).events


def test_loss_with_labels(tmp_path):
    """Importances that need a loss get the labels of the training step's batch."""
    seen = []

    def loss(network, inputs):
        seen.append(inputs.batch[1])
        return F.cross_entropy(network(*inputs.args, **inputs.kwargs), inputs.batch[1])

    module = Plain()
    fit(tmp_path, module, prune(importance="taylor", loss=loss, remove={"attention": 1}))
    assert sum(len(labels) for labels in seen) == 16
    assert Ledger.of(module).events


@pytest.mark.parametrize("make", [Plain, Watched, Manual])
def test_bf16_mixed_precision(tmp_path, make):
    module = make()
    fit(tmp_path, module, prune(), DistillRecover(), precision="bf16-mixed")
    assert Ledger.of(module).events
    assert {p.dtype for p in module.parameters()} == {torch.float32}


def test_bf16_true_precision(tmp_path):
    module = Plain()
    fit(tmp_path, module, prune(), DistillRecover(), precision="bf16-true")
    assert Ledger.of(module).events
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}


# The module after surgery


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
        assert len(find_units(other.net)) == 16
    assert len(find_units(module.net)) < 16


def test_checkpoints_after_the_fit(tmp_path):
    module = Plain()
    runner = fit(tmp_path, module, prune())
    runner.save_checkpoint(tmp_path / "later.ckpt")
    images = dataset().tensors[0]
    assert torch.equal(load_pruned(tmp_path / "later.ckpt")(images), module.eval().net(images))
    assert torch.equal(load_pruned(tmp_path / "later.ckpt", Plain).eval().net(images), module.net(images))


def test_second_fit_with_the_same_callback_goes_on(tmp_path):
    module, callback = Plain(), prune()
    runner = fit(tmp_path, module, callback)
    runner.fit_loop.max_epochs = 4
    runner.fit(module, loader())
    fit(tmp_path, module, callback)
    assert len(Ledger.of(module).events) == 1


def test_second_fit_with_a_new_callback_prunes_again(tmp_path):
    """A loop of fits that each remove some; the second one can be resumed from before and after its surgery."""
    module = Plain()
    fit(tmp_path, module, prune())
    start = copy.deepcopy(module)
    every = ModelCheckpoint(tmp_path / "files", filename="{epoch}", save_top_k=-1)
    fit(tmp_path, module, prune(), every, epochs=3)
    assert [event["epoch"] for event in Ledger.of(module).events] == [1, 1]
    assert len(find_units(module.net)) == 16 - 4
    for epoch in (0, 1):
        again = copy.deepcopy(start) if epoch else Plain()
        trainer_of(tmp_path, prune(), epochs=3).fit(
            again, loader(), ckpt_path=tmp_path / "files" / f"epoch={epoch}.ckpt"
        )
        assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))


def test_distillation_goes_on_in_a_second_fit(tmp_path):
    """The teacher is the dense network from before the first surgery, though another Trainer saved it."""
    module = Plain()
    fit(tmp_path / "first", module, prune(), DistillRecover())
    logged = trainer_of(tmp_path / "second", DistillRecover(), epochs=1)
    logged.fit(module, loader())
    assert "distillation_loss" in logged.callback_metrics


def test_recovery_without_depth_prune_resumes_bitwise(tmp_path):
    """Whoever reads the ledger puts optimizers and random states in order."""
    module = Plain(epochs=3)
    fit(tmp_path, module, prune(), DistillRecover(), ModelCheckpoint(filename="{epoch}", save_top_k=-1), epochs=3)
    again = Plain(epochs=3)
    runner = trainer_of(tmp_path / "again", DistillRecover(), epochs=3)
    runner.fit(again, loader(), ckpt_path=tmp_path / "checkpoints" / "epoch=1.ckpt")
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))


def test_endless_fit(tmp_path):
    module = Plain()
    fit(tmp_path, module, prune(), epochs=-1, max_steps=9)
    assert Ledger.of(module).events


def test_reloaded_dataloaders(tmp_path):
    module = Plain()
    fit(tmp_path, module, prune(), reload_dataloaders_every_n_epochs=1)
    assert Ledger.of(module).events


def test_a_teacher_of_the_users_own_is_not_pruned(tmp_path):
    """A copy of the module in a callback is no shadow copy, unless it says so."""

    class Own(pl.Callback):
        def __init__(self):
            self.teacher, self.ema_module = Plain(), Plain()

    own, module = Own(), Plain()
    fit(tmp_path, module, own, prune())
    assert len(find_units(own.teacher.net)) == 16
    assert len(find_units(own.ema_module.net)) == len(find_units(module.net)) < 16


def test_adapters_are_left_alone(tmp_path):
    """The network inside a peft model is pruned; adapters of what stays are kept and train."""
    import peft
    from habits import tiny_vit

    class Adapted(Plain):
        def __init__(self):
            super().__init__()
            config = peft.LoraConfig(r=2, target_modules=["qkv"], modules_to_save=["head"])
            self.net = peft.get_peft_model(tiny_vit(), config)

    module = Adapted()
    runner = fit(tmp_path, module, prune(remove={"attention": 1}, replace="zero"))
    adapters = [name for name, _ in module.named_parameters() if "lora" in name]
    assert len(adapters) == 2 * 3
    held = {p for group in runner.optimizers[0].param_groups for p in group["params"]}
    assert {p for p in module.parameters() if p.requires_grad} <= held <= set(module.parameters())


# Without a fit


def test_plan_is_applied_before_other_loops(tmp_path):
    module = Plain()
    plan = plan_depth(module.net, remove=REMOVE, batches=[dataset().tensors[0]])
    images = dataset().tensors[0]
    expected = copy.deepcopy(module.net).eval()
    apply_plan(expected, plan)
    path = plan.save(tmp_path / "plan.json")
    runner = trainer_of(tmp_path, DepthPrune(plan=path))
    for loop in (runner.test, runner.validate, runner.predict, runner.test):
        loop(module, loader(shuffle=False), **({} if loop == runner.predict else {"verbose": False}))
        assert torch.equal(module.net.eval()(images), expected(images))
    runner.fit(module, loader())  # the same callback does not do it again
    assert len(Ledger.of(module).events) == 1


def test_two_plans_in_turn(tmp_path):
    module = Plain()
    images = dataset().tensors[0]
    first = plan_depth(module.net, remove={"attention": 1}, batches=[images])
    pruned = copy.deepcopy(module.net)
    apply_plan(pruned, first)
    second = plan_depth(pruned, remove={"activation": 1}, batches=[images])
    apply_plan(pruned, second)
    trainer_of(tmp_path, DepthPrune(plan=first), DepthPrune(plan=second)).test(module, loader(), verbose=False)
    assert torch.equal(module.net.eval()(images), pruned.eval()(images))


def test_checkpoints_ledger_wins_over_a_plan(tmp_path):
    module = Plain()
    fit(tmp_path, module, prune(remove={"attention": 2}), ModelCheckpoint(filename="{epoch}", save_top_k=-1))
    plan = plan_depth(Plain().net, remove={"activation": 1}, batches=[dataset().tensors[0]], replace="zero")
    for epoch, left in ((0, 16), (1, 14)):
        fresh = Plain()
        file = tmp_path / "checkpoints" / f"epoch={epoch}.ckpt"
        trainer_of(tmp_path, DepthPrune(plan=plan)).test(fresh, loader(), ckpt_path=file, verbose=False)
        assert len(find_units(fresh.net)) == left


def test_plan_is_fitted_anew_to_trained_weights(tmp_path):
    """The units and what they leave are the plan's; the values are those that fit the weights at the surgery."""
    module = Plain()
    plan = plan_depth(module.net, remove={"activation": 2}, batches=[dataset().tensors[0]])
    assert plan.needed_tensors
    fit(tmp_path, module, prune(remove=None, plan=plan))
    done = Ledger.of(module).plans["net"]
    assert done.edits == plan.edits
    assert any(not torch.equal(done.tensors[key], plan.tensors[key]) for key in plan.needed_tensors)


def test_plan_beside_the_checkpoints_makes_the_same_structure(tmp_path):
    """Sharded strategies need it early; after a resume it still has the fitted tensors of the surgeries before."""
    steps = {"start": 1, "every": 1, "step": 1}
    every = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    fit(tmp_path, Plain(), prune(remove={"activation": 2}, schedule=steps), every, epochs=3)
    whole = Plan.load(tmp_path / "plan.json")
    assert set(whole.tensors) == set(whole.needed_tensors)
    again = Plain()
    every = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    runner = trainer_of(tmp_path, prune(remove={"activation": 2}, schedule=steps), every, epochs=3)
    runner.fit(again, loader(), ckpt_path=tmp_path / "epoch=1.ckpt")
    resumed = Plan.load(tmp_path / "plan.json")
    assert resumed.edits == whole.edits
    assert set(resumed.tensors) == set(whole.tensors)
