"""Calibration on users' own loaders, streams and steps."""

from __future__ import annotations

import copy
import os
import random

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from cases.models.habits import Adversarial, ByName, InTurn, Plain, Watched, dataset, loader
from cases.sampling import one_in
from cases.trainers import fit, prune
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

from prunerecover.callbacks import DistillRecover
from prunerecover.callbacks.calibration.capture import capture_inputs
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.ledger.ledger import Ledger


class AtSurgery(pl.Callback):
    """Records the module in the first step of epoch 1."""

    def __init__(self, look):
        self.look, self.after = look, None

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch == 1 and batch_idx == 0:
            self.after = self.look(trainer, pl_module)


def streams():
    """Return a dataset and iterator in a single object: samples cannot be read twice."""

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


def generator_of_its_own():
    return DataLoader(dataset(), 8, shuffle=True, generator=torch.Generator().manual_seed(4))


def drawn_anew():
    """Return a loader that is no DataLoader, and draws from the random state of the process."""

    class Batches:
        def __iter__(self):
            return iter(loader())

        def __len__(self):
            return 6

    return Batches()


LOADERS = [whole_batches, own_batch_sampler, generator_of_its_own, drawn_anew]


@pytest.mark.parametrize("make", [*one_in(2, LOADERS), pytest.param(persistent, marks=pytest.mark.slow)])
def test_calibration_leaves_the_data_alone(tmp_path, make):
    """A fit with pruning has the same batches as a fit without."""

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


@pytest.mark.parametrize("make", [Watched, Adversarial])
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


def test_further_samples_are_others_and_at_most_all():
    found = {}

    class Capture(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            surgery = Surgery(trainer, pl_module, "net", 16)
            found.update({0: surgery.inputs, **{n: surgery.further(n) for n in (8, 1000)}})

    fit("/nowhere", Plain(), Capture(), data=loader(), enable_checkpointing=False)
    samples = {n: {tuple(x.flatten().tolist()) for one in own for x in one.batch[0]} for n, own in found.items()}
    assert [len(own) for own in samples.values()] == [16, 8, 32]
    assert not samples[0] & (samples[8] | samples[1000])


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
    """Importances with a loss receive the labels of the training step's batch."""
    seen = []

    def loss(network, batch):
        seen.append(batch[1])
        return F.cross_entropy(network(batch[0]), batch[1])

    module = Plain()
    fit(tmp_path, module, prune(importance="taylor", loss=loss, remove={"attention": 1}))
    assert sum(len(labels) for labels in seen) == 16
    assert Ledger.of(module).events
