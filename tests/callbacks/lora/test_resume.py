"""Adapters survive resuming, testing and loading."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from cases.lora import IMAGES, Watch, depth, fit, held, lora, trainer_of, width
from cases.models.habits import Plain, loader, tiny_vit
from cases.trainers import assert_same
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from prunerecover import apply_plan, load_pruned, plan_depth
from prunerecover.callbacks import DepthPrune, PruneReport
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.recovery.lora import frozen_parameters, has_adapters


@pytest.mark.slow
def test_adapters_keep_their_precision_in_a_trainer_of_half(tmp_path):
    """Lightning rounds all weights of a resumed or tested module; adapters stay float32, bit for bit."""

    def dtypes(module):
        return {p.dtype for name, p in module.named_parameters() if "lora_" in name}

    half = {"precision": "bf16-true", "epochs": 2}
    whole, runner = fit(tmp_path / "whole", lora(), depth(), **half)
    part, _ = fit(tmp_path / "part", lora(), depth(), resume=tmp_path / "whole" / "epoch=0.ckpt", **half)
    assert dtypes(part) == {torch.float32}
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
        trained = [p for name, p in module.named_parameters() if p.requires_grad]
        assert len(trained) < len(list(module.parameters())) or not adapted
    assert result == live
    assert runner.test(module, loader(shuffle=False), ckpt_path="best", verbose=False) == live
    assert "epoch=2" in best.best_model_path  # of the model after the last surgery


class Counting(Plain):
    """Validation metric with the best value in the first epoch."""

    def validation_step(self, batch, batch_idx):
        self.log("epoch_number", float(self.current_epoch))


def test_best_may_be_from_before_the_adapters(tmp_path):
    """Injecting adapters changes no output, and earlier scores still count."""
    best = ModelCheckpoint(tmp_path / "best", monitor="epoch_number", filename="{epoch}")
    module, runner = fit(tmp_path, best, lora(start=1), make=Counting)
    assert "epoch=0" in best.best_model_path
    result = runner.test(module, loader(shuffle=False), ckpt_path="best", verbose=False)
    assert not has_adapters(module.net)
    assert all(p.requires_grad for p in module.parameters())
    fresh = trainer_of(tmp_path, lora())
    assert fresh.test(Counting(), loader(shuffle=False), ckpt_path=best.best_model_path, verbose=False) == result


@pytest.mark.slow
def test_best_of_a_resumed_run_of_depth_width_and_lora_is_tested_as_it_was(tmp_path):
    """Surgery of depth at epoch 1 and of width at epoch 2, which has the best score, with training after it."""

    def run(folder, **settings):
        best = ModelCheckpoint(folder / "best", monitor="epoch_number", filename="{epoch}")
        callbacks = [depth(), width(schedule={"start": 2}), lora(), best]
        module, runner = fit(folder, *callbacks, make=Counting, epochs=4, **settings)
        assert "epoch=2" in best.best_model_path
        live = runner.test(module, loader(shuffle=False), verbose=False)
        found = runner.test(module, loader(shuffle=False), ckpt_path="best", verbose=False)
        assert found != live
        assert {"attention", "activation", "neuron"} <= set(Ledger.of(module).plans["net"].removed)
        assert has_adapters(module.net)
        return found, best.best_model_path

    found, file = run(tmp_path / "whole")
    again, _ = run(tmp_path / "again", resume=tmp_path / "whole" / "epoch=1.ckpt")
    assert again == found
    fresh = trainer_of(tmp_path, depth(), width(), lora())
    assert fresh.test(Counting(), loader(shuffle=False), ckpt_path=file, verbose=False) == found


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


def test_adapters_alone(tmp_path):
    """Without pruning, the folder and the checkpoints hold the dense network."""
    module, _ = fit(tmp_path, lora(), epochs=1)
    with torch.no_grad():
        expected = module.net.eval()(IMAGES)
        for path in ("pruned", "epoch=0.ckpt"):
            opened = load_pruned(tmp_path / path)
            assert opened.state_dict().keys() == tiny_vit().state_dict().keys()
            torch.testing.assert_close(opened(IMAGES), expected, rtol=1e-5, atol=1e-6)


def test_files_that_do_not_fit_leave_a_network_plain(tmp_path):
    fit(tmp_path, lora(), epochs=1)
    file = tmp_path / "epoch=0.ckpt"
    content = torch.load(file, weights_only=True)
    del content["state_dict"]["net.head.weight"]
    torch.save(content, tmp_path / "cut.ckpt")
    network = tiny_vit(drop_path_rate=0.2)
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(ValueError, match=r"cut.ckpt lacks head.weight"):
        load_pruned(tmp_path / "cut.ckpt", network)
    assert not has_adapters(network)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_second_fit_goes_on_with_the_adapters(tmp_path):
    module, _ = fit(tmp_path, lora(), epochs=1)
    before = Ledger.of(module).adapters["net"]
    _, runner = fit(tmp_path / "second", depth(), lora(), module=module, epochs=2)
    assert held(runner) == {p for p in module.parameters() if p.requires_grad}
    assert Ledger.of(module).adapters["net"] != before
    frozen = frozen_parameters(module.net, Ledger.of(module).adapters["net"])
    assert not any(p.requires_grad for p in frozen.values())


def test_second_fit_with_other_settings_folds_the_first_adapters(tmp_path):
    module, _ = fit(tmp_path, lora(), epochs=1)
    expected = module.net.eval()(IMAGES)
    watch = Watch(lambda trainer, module: copy.deepcopy(module.net).eval()(IMAGES))
    module.train()
    fit(tmp_path / "second", lora(rank=3), watch, module=module, epochs=1)
    torch.testing.assert_close(watch.first[0], expected, rtol=1e-5, atol=1e-6)
    assert Ledger.of(module).adapters["net"].settings.rank == 3


def test_plan_for_a_test_is_applied_to_the_folded_network(tmp_path):
    module, _ = fit(tmp_path, lora(), epochs=1)
    plain = copy.deepcopy(module)
    Ledger.of(plain).merge(plain, "net")
    plan = plan_depth(plain.net, remove={"attention": 1}, batches=[IMAGES], replace="zero")
    apply_plan(plain.net, plan)
    trainer_of(tmp_path, DepthPrune(plan=plan)).test(module, loader(shuffle=False), verbose=False)
    assert not has_adapters(module.net)
    torch.testing.assert_close(module.net.eval()(IMAGES), plain.net.eval()(IMAGES))
