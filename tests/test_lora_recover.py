"""LoRARecover inside a Trainer: what trains and what does not, surgery around it, files, resuming, and bad input."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from habits import Compiled, Manual, Plain, TwoOptimizers, Wrapped, WrappedCompiled, dataset, loader, tiny_vit, tokens
from lightning.pytorch.callbacks import EMAWeightAveraging, LearningRateFinder, ModelCheckpoint
from lightning.pytorch.strategies import FSDPStrategy
from test_callback_errors import sharded
from test_contract import assert_same
from torch import nn

from prunerecover import Budget, apply_plan, load_pruned, plan_depth
from prunerecover.callbacks import DepthPrune, DistillRecover, LoRARecover, PruneReport, WidthPrune
from prunerecover.callbacks.ledger import KEY, Ledger
from prunerecover.lora import frozen_parameters, has_adapters
from prunerecover.replacements import Replacement
from prunerecover.structure import get_module

IMAGES = dataset().tensors[0]


def depth(**arguments):
    settings = {"remove": {"attention": 1, "activation": 1}, "schedule": {"start": 1}, "calibration": 16}
    return DepthPrune(**{**settings, **arguments})


def width(**arguments):
    return WidthPrune(**{"budget": Budget(macs=0.2), "schedule": {"start": 1}, "calibration": 16, **arguments})


def lora(**arguments):
    return LoRARecover(**{"rank": 2, "dropout": 0.1, **arguments})


def trainer_of(folder, *callbacks, epochs=3, **settings):
    every = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return pl.Trainer(max_epochs=epochs, callbacks=[*callbacks, every], **{**quiet, **settings})


def fit(folder, *callbacks, make=Plain, module=None, data=None, resume=None, **settings):
    pl.seed_everything(7, verbose=False)
    module = make() if module is None else module
    runner = trainer_of(folder, *callbacks, **settings)
    val = loader(shuffle=False) if data is None else None
    runner.fit(module, loader() if data is None else data, val, ckpt_path=resume)
    return module, runner


class Watch(pl.Callback):
    """Calls `look(trainer, module)` at the start and end of each epoch's training."""

    def __init__(self, look):
        self.look, self.first, self.last = look, {}, {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == 0:
            self.first[trainer.current_epoch] = self.look(trainer, pl_module)

    def on_train_epoch_end(self, trainer, pl_module):
        self.last[trainer.current_epoch] = self.look(trainer, pl_module)


def weights(trainer, module):
    return {name.replace(".base_layer.", "."): p.detach().clone() for name, p in module.net.named_parameters()}


def held(runner):
    return {p for optimizer in runner.optimizers for group in optimizer.param_groups for p in group["params"]}


# What trains


def test_frozen_weights_rest_and_adapters_and_head_train(tmp_path):
    watch = Watch(weights)
    module, runner = fit(tmp_path, lora(start=1), watch)
    adapters = Ledger.of(module).adapters["net"]
    assert len(adapters.modules) == 4 * 4
    moved = {name for name, value in watch.last[2].items() if not torch.equal(value, watch.first[1][name])}
    assert not moved & set(adapters.frozen)
    assert {f"{path}.lora_{x}.default.weight" for path in adapters.modules for x in "AB"} <= moved
    assert {"head.weight", "head.bias", "norm.weight", "blocks.0.norm1.bias", "blocks.0.attn.qkv.bias"} <= moved
    assert {"blocks.0.attn.qkv.weight", "patch_embed.proj.weight", "pos_embed"} <= set(adapters.frozen)
    assert held(runner) == {p for p in module.parameters() if p.requires_grad}
    assert set(runner.optimizers[0].state) == held(runner)


def test_laying_changes_no_output(tmp_path):
    def look(trainer, module):
        with torch.no_grad():
            return copy.deepcopy(module.net).eval()(IMAGES)

    watch = Watch(look)
    fit(tmp_path, watch, lora(start=1), epochs=2)
    assert torch.equal(watch.last[0], watch.first[1])  # Watch looks before, LoRARecover comes behind it
    watch = Watch(look)
    fit(tmp_path, lora(start=1), watch, epochs=2)
    assert torch.equal(watch.last[0], watch.first[1])


def test_adapters_join_the_groups_of_their_weights(tmp_path):
    module, runner = fit(tmp_path, lora(start=1))
    by_parameter = {p: i for i, group in enumerate(runner.optimizers[0].param_groups) for p in group["params"]}
    for name, parameter in module.net.named_parameters():
        if parameter.requires_grad:
            assert by_parameter[parameter] == (0 if parameter.ndim > 1 else 1), name
    assert runner.optimizers[0].param_groups[0]["lr"] == runner.lr_scheduler_configs[0].scheduler.get_last_lr()[0]


def test_vectors_and_modules_of_choice(tmp_path):
    module, _ = fit(tmp_path, lora(target_modules="qkv", modules_to_save=["blocks.3.mlp"], vectors=False), epochs=1)
    trained = {name for name, p in module.net.named_parameters() if p.requires_grad}
    assert {name for name in trained if "lora" not in name} == {
        f"blocks.3.mlp.fc{i}.{kind}" for i in (1, 2) for kind in ("weight", "bias")
    }
    assert len(trained) == 4 + 2 * 4


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
    Ledger.of(module).fold(module, "net")
    assert {name for name, p in module.net.named_parameters() if p.requires_grad} == {"head.weight", "head.bias"}


@pytest.mark.parametrize("make", [Manual, TwoOptimizers, pytest.param(Compiled, marks=pytest.mark.slow)])
def test_foreign_modules(tmp_path, make):
    module, runner = fit(tmp_path, depth(), lora(), make=make, epochs=2)
    assert held(runner) == {p for p in module.parameters() if p.requires_grad}
    assert has_adapters(module.net)


def test_llama(tmp_path):
    surgeon = depth(remove={"mlp": 1}, replace="zero", schedule={"start": 0})
    module, _ = fit(tmp_path, surgeon, lora(), make=Wrapped, data=tokens(), epochs=1)
    assert len(Ledger.of(module).adapters["lm"].modules) == 4 * 7 - 3
    ids = next(iter(tokens()))[0]
    opened = load_pruned(tmp_path / "pruned")
    assert not has_adapters(opened)
    with torch.no_grad():
        torch.testing.assert_close(opened(ids).logits, module.lm.eval()(ids).logits, rtol=1e-4, atol=1e-4)


# Surgery around it


@pytest.mark.parametrize("first", [True, False])
def test_adapters_come_after_all_surgery_of_the_epoch(tmp_path, first):
    """Whatever the order of the callbacks, in the same epoch and in later ones."""
    callbacks = [depth(), width(schedule={"start": 2})]
    callbacks.insert(0 if first else 2, lora(start=1))
    watch = Watch(lambda trainer, module: dict(Ledger.of(module).adapters))
    module, runner = fit(tmp_path, *callbacks, watch)
    assert {epoch: bool(laid) for epoch, laid in watch.last.items()} == {0: False, 1: True, 2: True}
    before, after = watch.last[1]["net"], watch.last[2]["net"]
    assert not set(after.modules) - set(before.modules)
    assert before.source.tensors != after.source.tensors
    for path in after.modules:
        layer = get_module(module.net, path)
        assert layer.lora_A["default"].weight.shape == (2, layer.in_features) == (2, layer.weight.shape[1])
        assert layer.lora_B["default"].weight.shape == (layer.weight.shape[0], 2)
    assert {"attention", "activation", "neuron"} <= set(Ledger.of(module).plans["net"].removed)
    assert held(runner) == {p for p in module.parameters() if p.requires_grad}


def test_surgery_begins_from_the_folded_network(tmp_path):
    """Fresh adapters on an unchanged network: its output is that of the trained ones before."""
    seen = {}

    class Look(DepthPrune):
        def decide(self, trainer, module, target, budget):
            assert not has_adapters(module.net)
            seen["plain"] = copy.deepcopy(module.net).eval()(IMAGES).detach()
            trained = {name for name, p in module.net.named_parameters() if p.requires_grad}
            assert trained == set(dict(module.net.named_parameters()))
            assert held(trainer) == set(module.parameters())
            return super().decide(trainer, module, target, budget)

    watch = Watch(lambda trainer, module: copy.deepcopy(module.net).eval()(IMAGES).detach())
    surgeon = Look(remove={"activation": 1}, schedule={"start": 2}, calibration=16, merge="never")
    fit(tmp_path, surgeon, lora(), watch)
    torch.testing.assert_close(seen["plain"], watch.last[1], rtol=1e-5, atol=1e-6)


def test_groups_are_found_again_after_folding(tmp_path):
    groups = {}

    class Look(DepthPrune):
        def decide(self, trainer, module, target, budget):
            names = {p: name for name, p in module.named_parameters()}
            found = [{names[p] for p in group["params"]} for group in trainer.optimizers[0].param_groups]
            groups[trainer.current_epoch] = found
            return super().decide(trainer, module, target, budget)

    steps = {"start": 0, "every": 2, "step": 1}
    fit(tmp_path, Look(remove={"attention": 2}, schedule=steps, replace="zero", calibration=16), lora())
    matrices, vectors = groups[2]
    gone = {name for name in groups[0][0] | groups[0][1]} - matrices - vectors
    assert all(".attn." in name or ".norm1." in name for name in gone)
    assert matrices == groups[0][0] - gone
    assert vectors == groups[0][1] - gone


def test_distillation_beside_it(tmp_path):
    """The teacher is the dense network with the adapters of its time folded in."""
    teachers = []

    class Look(DistillRecover):
        def before_surgery(self, trainer, pl_module, target):
            super().before_surgery(trainer, pl_module, target)
            teachers.append(self._network)

    watch = Watch(lambda trainer, module: copy.deepcopy(module.net).eval()(IMAGES).detach())
    fit(tmp_path, depth(schedule={"start": 2}), Look(), lora(), watch)
    assert not has_adapters(teachers[0])
    torch.testing.assert_close(teachers[0](IMAGES), watch.last[1], rtol=1e-5, atol=1e-6)


def test_averaged_copies_follow(tmp_path):
    average = EMAWeightAveraging(decay=0.9)
    seen = Watch(lambda trainer, module: [(n, p.shape) for n, p in average._average_model.module.named_parameters()])
    module, _ = fit(tmp_path, depth(), average, lora(), seen)
    assert seen.last[2] == [(name, p.shape) for name, p in module.named_parameters()]
    assert any("lora" in name for name, _ in seen.last[2])


# Files


@pytest.mark.parametrize("epochs", [(1,), pytest.param((0, 2), marks=pytest.mark.slow)])
def test_resumed_equals_uninterrupted(tmp_path, epochs):
    """Depth, width, LoRA and distillation under one ledger; from before, between and after the surgeries."""

    def callbacks():
        return [lora(), depth(), width(schedule={"start": 2}), DistillRecover()]

    whole, _ = fit(tmp_path / "whole", *callbacks(), epochs=4)
    for epoch in epochs:
        file = tmp_path / "whole" / f"epoch={epoch}.ckpt"
        part, _ = fit(tmp_path / f"from{epoch}", *callbacks(), epochs=4, resume=file)
        assert_same(whole, part)
        assert Ledger.of(part).adapters == Ledger.of(whole).adapters
        assert Ledger.of(part).places == Ledger.of(whole).places


class NamedGroups(Plain):
    """Its optimizer knows parameters by name."""

    def configure_optimizers(self):
        named = list(self.named_parameters())
        groups = [{"params": [(n, p) for n, p in named if (p.ndim > 1) is many]} for many in (True, False)]
        return torch.optim.AdamW(groups, 1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "callbacks"),
    [
        (Manual, list),
        (TwoOptimizers, list),
        (lambda: Plain("sgd", "onecycle"), list),
        (Plain, lambda: [EMAWeightAveraging(decay=0.9)]),
        (WrappedCompiled, list),
        (NamedGroups, list),
    ],
)
def test_resumed_equals_uninterrupted_in_foreign_code(tmp_path, make, callbacks):
    whole, _ = fit(tmp_path / "whole", lora(start=1), depth(schedule={"start": 2}), *callbacks(), make=make)
    for epoch in (0, 1):
        file = tmp_path / "whole" / f"epoch={epoch}.ckpt"
        again = [lora(start=1), depth(schedule={"start": 2}), *callbacks()]
        part, _ = fit(tmp_path / f"from{epoch}", *again, make=make, resume=file)
        assert_same(whole, part)


@pytest.mark.slow
def test_resumes_where_the_optimizer_is_made_of_what_trains(tmp_path):
    class Filtered(Plain):
        def configure_optimizers(self):
            return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], 1e-2)

    callbacks = [lora(), depth(schedule={"start": 2})]
    whole, _ = fit(tmp_path / "whole", *callbacks, make=Filtered)
    again = [lora(), depth(schedule={"start": 2})]
    part, _ = fit(tmp_path / "part", *again, make=Filtered, resume=tmp_path / "whole" / "epoch=0.ckpt")
    assert_same(whole, part)


NEW_PROCESS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from habits import Plain, loader
from test_lora_recover import lora, trainer_of
from prunerecover.callbacks import PruneReport
found = []
for file in sys.argv[3:]:
    for callback in (lora(), PruneReport()):
        runner = trainer_of(sys.argv[2], callback)
        found += runner.test(Plain(), loader(shuffle=False), ckpt_path=file, verbose=False)
print(json.dumps(found))
"""


def test_files_are_tested_as_they_were(tmp_path):
    """With and without adapters and surgery, in any order; and the best one by name."""
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


def test_best_may_be_from_before_the_adapters(tmp_path):
    """Laying changes no output, so scores before it still count."""
    best = ModelCheckpoint(tmp_path / "best", monitor="epoch_number", filename="{epoch}")

    class Counting(Plain):
        def validation_step(self, batch, batch_idx):
            self.log("epoch_number", float(self.current_epoch))

    module, runner = fit(tmp_path, best, lora(start=1), make=Counting)
    assert "epoch=0" in best.best_model_path
    result = runner.test(module, loader(shuffle=False), ckpt_path="best", verbose=False)
    assert not has_adapters(module.net)
    assert all(p.requires_grad for p in module.parameters())
    fresh = trainer_of(tmp_path, lora())
    assert fresh.test(Counting(), loader(shuffle=False), ckpt_path=best.best_model_path, verbose=False) == result


@pytest.mark.slow
def test_files_are_tested_in_a_new_process(tmp_path):
    module, runner = fit(tmp_path, depth(), width(schedule={"start": 2}), lora())
    files = [str(tmp_path / f"epoch={epoch}.ckpt") for epoch in (0, 1, 2)]
    expected = [runner.test(module, loader(shuffle=False), ckpt_path=f, verbose=False)[0] for f in files for _ in "ab"]
    command = [sys.executable, "-c", NEW_PROCESS, str(Path(__file__).parent), str(tmp_path / "new"), *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == expected


def test_saved_folder_is_an_ordinary_network(tmp_path):
    module, _ = fit(tmp_path, depth(), width(schedule={"start": 2}), lora())
    opened = load_pruned(tmp_path / "pruned", tiny_vit(drop_path_rate=0.2))
    assert not has_adapters(opened)
    assert not [m for m in opened.modules() if type(m).__module__.startswith("peft")]
    assert not [name for name in opened.state_dict() if "lora" in name or "base_layer" in name]
    assert sum(type(m) is nn.Linear for m in opened.blocks.modules()) == 4 * 4 - 2 - 1  # two linears are one
    with torch.no_grad():
        torch.testing.assert_close(opened(IMAGES), module.net.eval()(IMAGES), rtol=1e-5, atol=1e-5)
    assert has_adapters(module.net)  # the live one trains on, if it is asked to


@pytest.mark.slow
def test_report_is_of_ordinary_networks(tmp_path):
    fit(tmp_path, depth(), lora(), PruneReport(tmp_path / "report", pairs=0), epochs=2)
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["dense"]["parameters"] == sum(p.numel() for p in tiny_vit().parameters())
    opened = load_pruned(tmp_path / "pruned")
    assert report["pruned"]["parameters"] == sum(p.numel() for p in opened.parameters())


def test_checkpoints_open_as_ordinary_networks(tmp_path):
    module, _ = fit(tmp_path, depth(), lora(start=1))
    file = tmp_path / "epoch=2.ckpt"
    with torch.no_grad():
        expected = module.net.eval()(IMAGES)
        for opened in (load_pruned(file), load_pruned(file, tiny_vit()), load_pruned(file, Plain).net.eval()):
            assert not has_adapters(opened)
            assert all(p.requires_grad for p in opened.parameters())
            torch.testing.assert_close(opened(IMAGES), expected, rtol=1e-5, atol=1e-6)


def test_adapters_alone(tmp_path):
    """Nothing is pruned in this fit: the folder and the checkpoints are of the dense network."""
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


def test_ledger_holds_plain_data(tmp_path):
    fit(tmp_path, lora(), epochs=1)
    record = torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)[KEY]
    assert json.loads(json.dumps(record["adapters"])) == record["adapters"]
    assert record["adapters"]["net"]["settings"]["rank"] == 2


# Several fits


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
    Ledger.of(plain).fold(plain, "net")
    plan = plan_depth(plain.net, remove={"attention": 1}, batches=[IMAGES], replace="zero")
    apply_plan(plain.net, plan)
    trainer_of(tmp_path, DepthPrune(plan=plan)).test(module, loader(shuffle=False), verbose=False)
    assert not has_adapters(module.net)
    torch.testing.assert_close(module.net.eval()(IMAGES), plain.net.eval()(IMAGES))


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


def test_fast_dev_run_tries_it(tmp_path):
    module, _ = fit(tmp_path, lora(start=5), fast_dev_run=True)
    assert has_adapters(module.net)


# Bad input


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"rank": 0}, r"Expected argument rank of LoRARecover in its range, but got 0: .* Usual are rank=16"),
        ({"alpha": 0}, r"Expected argument alpha of LoRARecover in its range, but got 0"),
        ({"dropout": 1.0}, r"Expected argument dropout of LoRARecover in its range, but got 1.0"),
        ({"start": -1}, r"Expected argument start to be an epoch >= 0, but got -1"),
    ],
)
def test_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        LoRARecover(**arguments)


def refused(folder, *callbacks, match, error=ValueError, make=Plain, **settings):
    """The fit stops with this message and the network is what it was."""
    module = make()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(error, match=match):
        fit(folder, *callbacks, module=module, **settings)
    assert module.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not Ledger.of(module).adapters


def test_start_past_the_end(tmp_path):
    refused(tmp_path, lora(start=3), match=r"Expected LoRARecover to start before max_epochs=3, but got start=3")


def test_nothing_to_adapt(tmp_path):
    match = r"of VisionTransformer to adapt at target_modules=\['q_proj'\], but there are none. Name some of: .*qkv"
    refused(tmp_path, lora(target_modules=["q_proj"]), match=match)


def test_nothing_in_the_blocks(tmp_path):
    class Convolutions(Plain):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 4))

    match = r"of Sequential to adapt in its blocks, but there are none. Name some of: 0, 2"
    refused(tmp_path, lora(), match=match, make=Convolutions)
    module, _ = fit(tmp_path, lora(target_modules="0"), make=Convolutions, epochs=1)
    assert Ledger.of(module).adapters["net"].modules == ("0",)
    assert module.net[2].weight.requires_grad


def test_two_on_one_network(tmp_path):
    match = r"Expected one LoRARecover for the network at 'net', but got 2. Remove one"
    refused(tmp_path, lora(), lora(rank=3), match=match)


def test_adapters_of_others(tmp_path):
    class Adapted(Plain):
        def __init__(self):
            super().__init__()
            from peft import LoraConfig, inject_adapter_in_model

            inject_adapter_in_model(LoraConfig(r=2, target_modules=["qkv"]), self.net)

    match = r"Expected a VisionTransformer without adapters, but it has some of peft. Merge them first"
    refused(tmp_path, lora(), match=match, make=Adapted)


def test_without_peft(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    match = r"Expected peft for LoRA, but it cannot be imported .* pip install"
    refused(tmp_path, lora(), match=match, error=ImportError)


def test_resuming_with_other_arguments(tmp_path):
    fit(tmp_path, lora(), epochs=1)
    with pytest.raises(
        ValueError, match=r"Expected LoRARecover with the arguments of the run that is resumed \(rank=2"
    ):
        fit(tmp_path, lora(rank=3), epochs=2, resume=tmp_path / "epoch=0.ckpt")


def test_surgery_without_it_is_said(tmp_path):
    fit(tmp_path, lora(), depth(schedule={"start": 2}))
    with pytest.warns(UserWarning, match=r"at 'net' are folded for its surgery, and no callback here lays new ones"):
        module, _ = fit(tmp_path / "a", depth(schedule={"start": 2}), resume=tmp_path / "epoch=0.ckpt")
    assert not has_adapters(module.net)
    assert all(p.requires_grad for p in module.net.parameters())


def test_optimizer_of_something_else(tmp_path):
    class Elsewhere(Plain):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def loss(self, batch):
            return super().loss(batch) * self.scale

        def configure_optimizers(self):
            return torch.optim.SGD([self.scale], 0.1)

    match = r"Expected an optimizer that holds parameters of the network, for its adapters to join, but none does"
    refused(tmp_path, lora(target="net"), match=match, error=RuntimeError, make=Elsewhere)


def test_sharding():
    module, callback = Plain(), lora()
    with pytest.raises(ValueError, match=r"Expected a strategy that keeps the model whole, but got FSDPStrategy"):
        callback.setup(sharded(FSDPStrategy.__new__(FSDPStrategy), callback), module, "fit")


def test_unfrozen_by_hand_is_not_in_the_optimizer(tmp_path):
    """A second fit whose configure_optimizers leaves the adapters out is refused before it trains nothing."""

    class Named(Plain):
        def configure_optimizers(self):
            return torch.optim.SGD([p for n, p in self.named_parameters() if "lora" not in n], 0.1)

    module, _ = fit(tmp_path, lora(), make=Named, epochs=1)
    with pytest.raises(RuntimeError, match=r"Expected every trainable parameter of the network in an optimizer"):
        fit(tmp_path / "again", lora(), module=module, epochs=1)
