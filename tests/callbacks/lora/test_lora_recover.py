"""LoRARecover inside a Trainer: trained and frozen weights, surgery, files, resuming, and bad input."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from cases.lora import IMAGES, Watch, depth, fit, held, lora, trainer_of, width
from cases.models.habits import Plain, Wrapped, loader, tiny_vit, tokens
from cases.trainers import assert_same
from lightning.pytorch.callbacks import LearningRateFinder, ModelCheckpoint
from torch import nn

from prunerecover import apply_plan, load_pruned, plan_depth
from prunerecover.callbacks import DepthPrune, PruneReport
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.model.paths import get_module
from prunerecover.model.replacements import Replacement
from prunerecover.recovery.lora import frozen_parameters, has_adapters


def weights(trainer, module):
    return {name.replace(".base_layer.", "."): p.detach().clone() for name, p in module.net.named_parameters()}


class Counting(Plain):
    """Validation metric with the best value in the first epoch."""

    def validation_step(self, batch, batch_idx):
        self.log("epoch_number", float(self.current_epoch))


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """Return the module, the Trainer and the watched weights of a fit with adapters from the second epoch on."""
    folder = tmp_path_factory.mktemp("adapted")
    best, watch = ModelCheckpoint(folder / "best", monitor="epoch_number", filename="{epoch}"), Watch(weights)
    return *fit(folder, best, lora(start=1), watch, make=Counting), watch


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """Return the folder and the module of a fit of an epoch with adapters, without surgery."""
    folder = tmp_path_factory.mktemp("once")
    return folder, fit(folder, lora(), epochs=1)[0]


def test_frozen_weights_rest_and_adapters_and_head_train(adapted):
    module, runner, watch = adapted
    adapters = Ledger.of(module).adapters["net"]
    assert len(adapters.modules) == 4 * 3
    moved = {name for name, value in watch.last[2].items() if not torch.equal(value, watch.first[1][name])}
    assert not moved & set(adapters.frozen)
    assert {f"{path}.lora_{x}.default.weight" for path in adapters.modules for x in "AB"} <= moved
    assert {"head.weight", "head.bias", "norm.weight", "blocks.0.norm1.bias", "blocks.0.attn.qkv.bias"} <= moved
    assert {"blocks.0.attn.qkv.weight", "patch_embed.proj.weight", "pos_embed"} <= set(adapters.frozen)
    assert held(runner) == {p for p in module.parameters() if p.requires_grad} == set(runner.optimizers[0].state)


def test_adapters_join_the_groups_of_their_weights(adapted):
    module, runner, _ = adapted
    by_parameter = {p: i for i, group in enumerate(runner.optimizers[0].param_groups) for p in group["params"]}
    for name, parameter in module.net.named_parameters():
        if parameter.requires_grad:
            assert by_parameter[parameter] == (0 if parameter.ndim > 1 else 1), name
    assert runner.optimizers[0].param_groups[0]["lr"] == runner.lr_scheduler_configs[0].scheduler.get_last_lr()[0]


def test_vectors_and_modules_of_choice(tmp_path):
    module, _ = fit(tmp_path, lora(target_modules="qkv", modules_to_save=["blocks.2.mlp"]), epochs=1)
    for name, parameter in module.net.named_parameters():
        assert parameter.requires_grad == ("lora" in name or "blocks.2.mlp.fc" in name or parameter.ndim <= 1), name


def test_stand_ins_of_surgery_train_in_full(tmp_path):
    module, _ = fit(tmp_path, depth(remove={"attention": 2}), lora(start=1, modules_to_save=[]))
    left = {p for m in module.net.modules() if isinstance(m, Replacement) for p in m.parameters()}
    assert left
    assert all(p.requires_grad == (p in left or "lora" in name) for name, p in module.net.named_parameters())


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
    Ledger.of(module).merge_adapters(module, "net")
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
def test_groups_are_found_again_after_folding(tmp_path):
    groups = []

    class Look(DepthPrune):
        def decide(self, surgery, budget):
            names = {p: name for name, p in surgery.module.named_parameters()}
            groups.append([{names[p] for p in group["params"]} for group in surgery.trainer.optimizers[0].param_groups])
            return super().decide(surgery, budget)

    steps = {"every": 2, "step": 1}
    fit(tmp_path, Look(remove={"attention": 2}, schedule=steps, replace="zero", calibration=16), lora())
    gone = set.union(*groups[0]) - set.union(*groups[1])
    assert all(".attn." in name or ".norm1." in name for name in gone)
    assert groups[1] == [group - gone for group in groups[0]]


def test_tuners_leave_the_adapters_alone(tmp_path):
    class Tunable(Plain):
        lr = 1e-3

    finders = [LearningRateFinder(num_training_steps=4, early_stop_threshold=None) for _ in range(2)]
    module, _ = fit(tmp_path, finders[0], lora(), make=Tunable, epochs=1)
    adapters = Ledger.of(module).adapters["net"]
    _, runner = fit(tmp_path / "second", finders[1], lora(), module=module, epochs=1)
    assert Ledger.of(module).adapters["net"] == adapters
    assert held(runner) == {p for p in module.parameters() if p.requires_grad}


@pytest.mark.slow
def test_adapters_keep_their_precision_in_a_trainer_of_half(tmp_path):
    """Lightning rounds all weights of a resumed or tested module; adapters stay float32, bit for bit."""
    half = {"precision": "bf16-true", "epochs": 2}
    whole, runner = fit(tmp_path / "whole", lora(), depth(), **half)
    part, _ = fit(tmp_path / "part", lora(), depth(), resume=tmp_path / "whole" / "epoch=0.ckpt", **half)
    assert {p.dtype for name, p in part.named_parameters() if "lora_" in name} == {torch.float32}
    assert_same(whole, part)
    before = copy.deepcopy(whole)
    runner.test(whole, loader(shuffle=False), verbose=False)
    assert_same(before, whole)
    assert {p.dtype for p in load_pruned(tmp_path / "whole" / "pruned").parameters()} == {torch.bfloat16}


def test_files_are_tested_as_they_were(tmp_path):
    """With and without adapters and surgery, in any order; and the best file by name."""
    best = ModelCheckpoint(tmp_path / "best", monitor="val_loss", filename="{epoch}")
    module, runner = fit(tmp_path, depth(schedule={"start": 2}), lora(start=1), best)
    live = runner.test(module, loader(shuffle=False), verbose=False)
    for epoch, adapted in ((0, False), (1, True), (2, True)):
        file = tmp_path / f"epoch={epoch}.ckpt"
        result = runner.test(module, loader(shuffle=False), ckpt_path=file, verbose=False)
        assert has_adapters(module.net) is adapted
        fresh = trainer_of(tmp_path, lora())
        assert fresh.test(Plain(), loader(shuffle=False), ckpt_path=file, verbose=False) == result
        assert all(p.requires_grad for p in module.parameters()) is not adapted
    assert result == live
    assert runner.test(module, loader(shuffle=False), ckpt_path="best", verbose=False) == live
    assert "epoch=2" in best.best_model_path  # of the model after the last surgery


def test_best_may_be_from_before_the_adapters(adapted, tmp_path):
    """Injecting adapters changes no output, and earlier scores still count."""
    module, runner = copy.deepcopy(adapted[0]), adapted[1]
    file = runner.checkpoint_callback.best_model_path
    assert "epoch=0" in file
    result = runner.test(module, loader(shuffle=False), ckpt_path=file, verbose=False)
    assert not has_adapters(module.net)
    assert all(p.requires_grad for p in module.parameters())
    fresh = trainer_of(tmp_path, lora())
    assert fresh.test(Counting(), loader(shuffle=False), ckpt_path=file, verbose=False) == result


@pytest.mark.slow
def test_folder_checkpoint_and_report_are_of_ordinary_networks(tmp_path):
    report = PruneReport(tmp_path / "report", pairs=0)
    module, _ = fit(tmp_path, depth(), width(schedule={"start": 2}), lora(), report)
    opened = load_pruned(tmp_path / "pruned", tiny_vit(drop_path_rate=0.2))
    assert not has_adapters(opened)
    assert not [m for m in opened.modules() if type(m).__module__.startswith("peft")]
    assert not [name for name in opened.state_dict() if "lora" in name or "base_layer" in name]
    assert sum(type(m) is nn.Linear for m in opened.blocks.modules()) == 4 * 3 - 2 - 1  # two linears are one
    file = tmp_path / "epoch=2.ckpt"
    with torch.no_grad():
        expected = module.net.eval()(IMAGES)
        torch.testing.assert_close(opened(IMAGES), expected, rtol=1e-5, atol=1e-5)
        for kept in (load_pruned(file), load_pruned(file, tiny_vit()), load_pruned(file, Plain).net.eval()):
            assert not has_adapters(kept)
            assert all(p.requires_grad for p in kept.parameters())
            torch.testing.assert_close(kept(IMAGES), expected, rtol=1e-5, atol=1e-5)
    assert has_adapters(module.net)  # the live one trains on, if it is asked to
    parameters = json.loads((tmp_path / "report" / "report.json").read_text())
    assert parameters["dense"]["parameters"] == sum(p.numel() for p in tiny_vit().parameters())
    assert parameters["pruned"]["parameters"] == sum(p.numel() for p in opened.parameters())


def test_adapters_alone(once):
    """Without pruning, the folder and the checkpoints hold the dense network."""
    folder, module = once
    with torch.no_grad():
        expected = module.net.eval()(IMAGES)
        for path in ("pruned", "epoch=0.ckpt"):
            opened = load_pruned(folder / path)
            assert opened.state_dict().keys() == tiny_vit().state_dict().keys()
            torch.testing.assert_close(opened(IMAGES), expected, rtol=1e-5, atol=1e-6)


def test_files_that_do_not_fit_leave_a_network_plain(once, tmp_path):
    content = torch.load(once[0] / "epoch=0.ckpt", weights_only=True)
    del content["state_dict"]["net.head.weight"]
    torch.save(content, tmp_path / "cut.ckpt")
    network = tiny_vit(drop_path_rate=0.2)
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(ValueError, match=r"cut.ckpt lacks head.weight"):
        load_pruned(tmp_path / "cut.ckpt", network)
    assert not has_adapters(network)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_second_fit_goes_on_with_the_adapters(once, tmp_path):
    module = copy.deepcopy(once[1])
    before = Ledger.of(module).adapters["net"]
    _, runner = fit(tmp_path, depth(), lora(), module=module, epochs=2)
    assert held(runner) == {p for p in module.parameters() if p.requires_grad}
    assert Ledger.of(module).adapters["net"] != before
    frozen = frozen_parameters(module.net, Ledger.of(module).adapters["net"])
    assert not any(p.requires_grad for p in frozen.values())


def test_second_fit_with_other_settings_folds_the_first_adapters(once, tmp_path):
    module = copy.deepcopy(once[1])
    expected = module.net.eval()(IMAGES)
    watch = Watch(lambda trainer, module: copy.deepcopy(module.net).eval()(IMAGES))
    module.train()
    fit(tmp_path, lora(rank=3), watch, module=module, epochs=1)
    torch.testing.assert_close(watch.first[0], expected, rtol=1e-5, atol=1e-6)
    assert Ledger.of(module).adapters["net"].settings.rank == 3


def test_plan_for_a_test_is_applied_to_the_folded_network(once, tmp_path):
    module, plain = copy.deepcopy(once[1]), copy.deepcopy(once[1])
    Ledger.of(plain).merge_adapters(plain, "net")
    plan = plan_depth(plain.net, importance="magnitude", remove={"attention": 1}, batches=[IMAGES], replace="zero")
    apply_plan(plain.net, plan)
    trainer_of(tmp_path, DepthPrune(plan=plan)).test(module, loader(shuffle=False), verbose=False)
    assert not has_adapters(module.net)
    torch.testing.assert_close(module.net.eval()(IMAGES), plain.net.eval()(IMAGES))
