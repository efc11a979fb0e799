"""LoRARecover inside a Trainer: trained and frozen weights, surgery, files, resuming, and bad input."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.lora import IMAGES, Watch, depth, fit, held, lora, width
from cases.models.habits import Plain, Wrapped, tokens
from lightning.pytorch.callbacks import LearningRateFinder

from prunerecover import load_pruned
from prunerecover.callbacks import DepthPrune, DistillRecover
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.model.paths import get_module
from prunerecover.model.replacements import Replacement
from prunerecover.recovery.lora import has_adapters


def weights(trainer, module):
    return {name.replace(".base_layer.", "."): p.detach().clone() for name, p in module.net.named_parameters()}


def test_frozen_weights_rest_and_adapters_and_head_train(tmp_path):
    watch = Watch(weights)
    module, runner = fit(tmp_path, lora(start=1), watch)
    adapters = Ledger.of(module).adapters["net"]
    assert len(adapters.modules) == 4 * 3
    moved = {name for name, value in watch.last[2].items() if not torch.equal(value, watch.first[1][name])}
    assert not moved & set(adapters.frozen)
    assert {f"{path}.lora_{x}.default.weight" for path in adapters.modules for x in "AB"} <= moved
    assert {"head.weight", "head.bias", "norm.weight", "blocks.0.norm1.bias", "blocks.0.attn.qkv.bias"} <= moved
    assert {"blocks.0.attn.qkv.weight", "patch_embed.proj.weight", "pos_embed"} <= set(adapters.frozen)
    assert held(runner) == {p for p in module.parameters() if p.requires_grad}
    assert set(runner.optimizers[0].state) == held(runner)


def test_adapters_join_the_groups_of_their_weights(tmp_path):
    module, runner = fit(tmp_path, lora(start=1))
    by_parameter = {p: i for i, group in enumerate(runner.optimizers[0].param_groups) for p in group["params"]}
    for name, parameter in module.net.named_parameters():
        if parameter.requires_grad:
            assert by_parameter[parameter] == (0 if parameter.ndim > 1 else 1), name
    assert runner.optimizers[0].param_groups[0]["lr"] == runner.lr_scheduler_configs[0].scheduler.get_last_lr()[0]


def test_vectors_and_modules_of_choice(tmp_path):
    module, _ = fit(tmp_path, lora(target_modules="qkv", modules_to_save=["blocks.2.mlp"], vectors=False), epochs=1)
    trained = {name for name, p in module.net.named_parameters() if p.requires_grad}
    assert {name for name in trained if "lora" not in name} == {
        f"blocks.2.mlp.fc{i}.{kind}" for i in (1, 2) for kind in ("weight", "bias")
    }
    assert len(trained) == 4 + 2 * 3


def test_stand_ins_of_surgery_train_in_full(tmp_path):
    module, _ = fit(tmp_path, depth(remove={"attention": 2}), lora(start=1, vectors=False))
    left = [p for m in module.net.modules() if isinstance(m, Replacement) for p in m.parameters()]
    assert left
    assert all(p.requires_grad for p in left)


def test_a_network_that_its_user_froze_is_adapted(tmp_path):
    class Frozen(Plain):
        def __init__(self):
            super().__init__()
            self.net.requires_grad_(False)
            self.net.head.requires_grad_(True)

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.head.parameters(), 0.1)

    module, runner = fit(tmp_path, lora(start=1), make=Frozen, epochs=2)
    trained = {name for name, p in module.net.named_parameters() if p.requires_grad}
    assert trained == {name for name, _ in module.net.named_parameters() if "lora" in name or "head" in name}
    assert held(runner) == {p for p in module.parameters() if p.requires_grad}
    assert all(module.net.get_parameter(name).any() for name in trained if "lora_B" in name)
    Ledger.of(module).merge(module, "net")
    assert {name for name, p in module.net.named_parameters() if p.requires_grad} == {"head.weight", "head.bias"}


def test_llama(tmp_path):
    surgeon = depth(remove={"mlp": 1}, replace="zero", schedule={"start": 0})
    module, _ = fit(tmp_path, surgeon, lora(), make=Wrapped, data=tokens(), epochs=1)
    assert len(Ledger.of(module).adapters["lm"].modules) == 4 * 7 - 3
    ids = next(iter(tokens()))[0]
    opened = load_pruned(tmp_path / "pruned")
    assert not has_adapters(opened)
    with torch.no_grad():
        torch.testing.assert_close(opened(ids).logits, module.lm.eval()(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_adapters_come_after_all_surgery_of_the_epoch(tmp_path, first):
    """For any order of the callbacks, in the same epoch and in later ones."""
    callbacks = [depth(), width(schedule={"start": 2})]
    callbacks.insert(0 if first else 2, lora(start=1))
    watch = Watch(lambda trainer, module: dict(Ledger.of(module).adapters))
    module, runner = fit(tmp_path, *callbacks, watch)
    assert {epoch: bool(injected) for epoch, injected in watch.last.items()} == {0: False, 1: True, 2: True}
    before, after = watch.last[1]["net"], watch.last[2]["net"]
    assert not set(after.modules) - set(before.modules)
    assert before.source.tensors != after.source.tensors
    for path in after.modules:
        layer = get_module(module.net, path)
        assert layer.lora_A["default"].weight.shape == (2, layer.in_features) == (2, layer.weight.shape[1])
        assert layer.lora_B["default"].weight.shape == (layer.weight.shape[0], 2)
    assert {"attention", "activation", "neuron"} <= set(Ledger.of(module).plans["net"].removed)
    assert held(runner) == {p for p in module.parameters() if p.requires_grad}


@pytest.mark.slow
def test_surgery_begins_from_the_folded_network(tmp_path):
    """With fresh adapters on an unchanged network, the output equals the output with the trained adapters before."""
    seen = {}

    class Look(DepthPrune):
        def decide(self, surgery, budget):
            module, trainer = surgery.module, surgery.trainer
            assert not has_adapters(module.net)
            seen["plain"] = copy.deepcopy(module.net).eval()(IMAGES).detach()
            trained = {name for name, p in module.net.named_parameters() if p.requires_grad}
            assert trained == set(dict(module.net.named_parameters()))
            assert held(trainer) == set(module.parameters())
            return super().decide(surgery, budget)

    watch = Watch(lambda trainer, module: copy.deepcopy(module.net).eval()(IMAGES).detach())
    surgeon = Look(remove={"activation": 1}, schedule={"start": 2}, calibration=16, merge="never")
    fit(tmp_path, surgeon, lora(), watch)
    torch.testing.assert_close(seen["plain"], watch.last[1], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_distillation_beside_it(tmp_path):
    """The teacher is the dense network with the adapters of that time merged."""
    teachers = []

    class Look(DistillRecover):
        def before_surgery(self, trainer, pl_module, target):
            super().before_surgery(trainer, pl_module, target)
            teachers.append(self._network)

    watch = Watch(lambda trainer, module: copy.deepcopy(module.net).eval()(IMAGES).detach())
    fit(tmp_path, depth(schedule={"start": 2}), Look(), lora(), watch)
    assert not has_adapters(teachers[0])
    torch.testing.assert_close(teachers[0](IMAGES), watch.last[1], rtol=1e-5, atol=1e-6)


def test_tuners_leave_the_adapters_alone(tmp_path):
    class Tunable(Plain):
        lr = 1e-3

    def finder():
        return LearningRateFinder(num_training_steps=4, early_stop_threshold=None)

    module, _ = fit(tmp_path, finder(), lora(), make=Tunable, epochs=1)
    adapters = Ledger.of(module).adapters["net"]
    _, runner = fit(tmp_path / "second", finder(), lora(), module=module, epochs=1)
    assert Ledger.of(module).adapters["net"] == adapters
    assert held(runner) == {p for p in module.parameters() if p.requires_grad}
