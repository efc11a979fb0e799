"""Bad input to the callbacks: what was expected, what was got, what to do; the model stays as it was."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from habits import Plain, dataset, loader, tiny_vit
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from test_foreign import fit, prune, trainer_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from prunerecover import Budget, Plan, Report, find_units, plan_depth
from prunerecover.callbacks import DepthPrune, DistillRecover, PruneReport, PruneSchedule
from prunerecover.callbacks.ledger import KEY, Ledger
from prunerecover.report import SearchCost


def snapshot(module):
    return repr(module), {k: v.clone() for k, v in module.state_dict().items()}


def refused(folder, module, *callbacks, error=ValueError, match, data=None, **settings):
    """The fit stops with this message before any step, and the module is what it was."""
    before = snapshot(module)
    with pytest.raises(error, match=match):
        fit(folder, module, *callbacks, data=data, **settings)
    text, weights = snapshot(module)
    assert text == before[0]
    assert all(torch.equal(value, weights[name]) for name, value in before[1].items())
    assert not Ledger.of(module).plans


def plan_for_plain(**arguments):
    torch.manual_seed(3)
    settings = {"remove": {"activation": 1}, "batches": [dataset().tensors[0]]}
    return plan_depth(Plain().net, **{**settings, **arguments})


# On construction


@pytest.mark.parametrize(
    "arguments", [{}, {"remove": {"mlp": 1}, "plan": Plan()}, {"budget": Budget(macs=0.1), "plan": Plan()}]
)
def test_exactly_one_of_budget_remove_and_plan(arguments):
    with pytest.raises(ValueError, match="Expected exactly one of budget, remove and plan, e.g. DepthPrune"):
        DepthPrune(**arguments)


def test_plan_of_another_type():
    with pytest.raises(TypeError, match="Expected argument plan to be a Plan or the path of one, but got int"):
        DepthPrune(plan=3)


def test_plan_is_read_when_the_fit_is_set_up(tmp_path):
    """A recipe names the plan that `prunerecover plan` is yet to write."""
    path = tmp_path / "later.json"
    callback = DepthPrune(plan=path)
    refused(tmp_path, Plain(), callback, error=FileNotFoundError, match="Expected a plan file at .*later.json")
    plan = plan_for_plain()
    plan.save(path)
    module = Plain()
    fit(tmp_path, module, callback)
    assert Ledger.of(module).plans["net"].removed == plan.removed


def test_unknown_kind():
    with pytest.raises(ValueError, match="Expected kinds among .*attention.*, but got 'attn'"):
        DepthPrune(remove={"attn": 1})


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"importance": "l1"}, "Expected argument importance to be one of .*magnitude.*, but got 'l1'"),
        ({"replace": "none"}, "Expected argument replace to be one of calibrated, zero, identity, but got 'none'"),
        ({"search": "random"}, "Expected argument search to be one of one_shot, greedy, but got 'random'"),
        ({"merge": "always"}, "Expected argument merge to be 'copy', 'at_surgery' or 'never', but got 'always'"),
        ({"calibration": 0}, "Expected argument calibration to be at least 1 sample, but got 0"),
        ({"schedule": {"start": -1}}, "Expected argument start to be an epoch >= 0, but got -1"),
        ({"schedule": {"every": 0, "step": 1}}, "Expected argument every to be at least 1, but got 0"),
        ({"schedule": {"every": 1, "step": 0}}, "Expected argument step to be at least 1, but got 0"),
        ({"schedule": {"step": 1}}, "Expected argument every with step"),
        ({"schedule": {"alternate": True}}, "Expected argument every with alternate=True"),
    ],
)
def test_arguments_of_depth_prune(arguments, match):
    with pytest.raises(ValueError, match=match):
        DepthPrune(remove={"attention": 1}, **arguments)


def test_only_units_go_in_steps():
    with pytest.raises(ValueError, match=r"Expected argument times, and no step, in a schedule with every=1"):
        DepthPrune(Budget(macs=0.2), schedule={"every": 1, "step": 1})


def test_plan_goes_at_once():
    with pytest.raises(ValueError, match="Expected a budget with schedule every=1, which removes some each time"):
        DepthPrune(plan=Plan(), schedule={"every": 1, "step": 1})


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"alpha": 1.5}, "Expected argument alpha to be between 0 and 1, but got 1.5"),
        ({"temperature": 0}, "Expected argument temperature to be positive, but got 0"),
    ],
)
def test_arguments_of_distill_recover(arguments, match):
    with pytest.raises(ValueError, match=match):
        DistillRecover(**arguments)


# At the start of a fit


def test_more_units_than_there_are(tmp_path):
    refused(
        tmp_path,
        Plain(),
        prune(remove={"attention": 5}),
        match="at most 4 units of kind 'attention' to remove, but got 5",
    )


@pytest.mark.parametrize(
    ("schedule", "last"),
    [({"start": 2}, 2), ({"every": 1, "step": 1}, 2), ({"every": 1, "step": 1, "alternate": True}, 3)],
)
def test_schedule_past_max_epochs(tmp_path, schedule, last):
    callback = prune(remove={"attention": 3, "activation": 1}, schedule=schedule)
    match = f"Expected all surgeries before max_epochs=2, but the last of . comes at the start of epoch {last}"
    refused(tmp_path, Plain(), callback, match=match)


class NoNetwork(Plain):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


def test_no_supported_network(tmp_path):
    refused(
        tmp_path,
        NoNetwork(),
        prune(),
        match=r"Expected a supported network \(.*timm.*\) inside NoNetwork, but found none",
    )


def test_target_that_is_no_network(tmp_path):
    match = r"Expected a supported network \(.*\) at target='net.head', but got Linear. Supported in this module: net"
    refused(tmp_path, Plain(), prune(target="net.head"), match=match)


def test_target_that_is_not_there(tmp_path):
    refused(
        tmp_path,
        Plain(),
        prune(target="model"),
        match=r"Expected the path of a network inside Plain as target, but there is no module at 'model'\. It has net;",
    )


class Forgetful(Plain):
    """Trains only its head, though all weights ask for gradients."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.head.parameters(), 1e-2)


def test_parameters_that_no_optimizer_holds(tmp_path):
    match = (
        r"Expected every trainable parameter .* but none holds cls_token, .*, .*, \.\.\.\. Add them in configure_opt"
    )
    refused(tmp_path, Forgetful(), prune(schedule={"start": 0}), error=RuntimeError, match=match)


def test_frozen_parameters_need_no_optimizer(tmp_path):
    module = Forgetful()
    module.net.requires_grad_(False).head.requires_grad_(True)
    fit(tmp_path, module, prune())
    assert Ledger.of(module).events
    assert {name for name, p in module.net.named_parameters() if p.requires_grad} == {"head.weight", "head.bias"}


class Elsewhere(Plain):
    """Calls parts of its network, never the whole."""

    def loss(self, batch):
        return self.net.head(self.net.forward_features(batch[0]).mean(1)).square().mean()


def test_training_step_that_never_calls_the_target(tmp_path):
    match = "Expected Elsewhere.training_step to call the network at target='net', but it never did"
    refused(tmp_path, Elsewhere(), prune(schedule={"start": 0}), match=match)


def test_training_data_without_a_batch(tmp_path):
    class Nothing(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    match = "Expected training data to calibrate on, but the train dataloader gave no batch"
    refused(tmp_path, Plain(), prune(schedule={"start": 0}), match=match, data=DataLoader(Nothing()))


def test_empty_dataset_leaves_a_warning(tmp_path):
    module = Plain()
    images, labels = dataset().tensors
    with pytest.warns(UserWarning, match="The fit ended before 1 surgeries of DepthPrune.0, the first at .* epoch 1"):
        fit(tmp_path, module, prune(), data=DataLoader(TensorDataset(images[:0], labels[:0]), 8))


def test_fit_that_ends_before_the_surgery(tmp_path):
    with pytest.warns(UserWarning, match="The fit ended before 1 surgeries .* less pruned than asked for"):
        fit(tmp_path, Plain(), prune(), max_steps=3)


def test_budget_below_one_unit(tmp_path):
    with pytest.warns(UserWarning, match="DepthPrune.0 will remove nothing: .*ratio.* is less than one unit"):
        fit(tmp_path, Plain(), prune(remove=None, budget=Budget(ratio={"attention": 0.1})))


@pytest.mark.filterwarnings("ignore:Only")
def test_share_below_one_unit_is_said_and_done(tmp_path):
    """A plan without edits changes nothing, once."""
    module = Plain()
    with pytest.warns(UserWarning, match="DepthPrune.0 removed nothing: its plan has no edits"):
        fit(tmp_path, module, prune(remove=None, budget=Budget(params=0.0)), epochs=3)
    assert [event["units"] for event in Ledger.of(module).events] == [[]]
    assert len(find_units(module.net)) == 16


# Plans


def test_plan_for_another_model(tmp_path):
    plan = plan_depth(tiny_vit(depth=3), remove={"activation": 1}, batches=[dataset().tensors[0]])
    match = "Expected the model that the plan was made for .* this model has 4 blocks"
    refused(tmp_path, Plain(), prune(remove=None, plan=plan, schedule={"start": 0}), match=match)


def test_plan_without_its_sidecar(tmp_path):
    path = plan_for_plain().save(tmp_path / "plan.json")
    (tmp_path / "plan.safetensors").unlink()
    match = r"Expected the plan's fitted tensors \(e0.* but they are missing. Put the .safetensors file"
    refused(tmp_path, Plain(), prune(remove=None, plan=path, schedule={"start": 0}), match=match)


def test_edited_plan(tmp_path):
    plan = plan_for_plain(replace="identity")
    plan = plan.model_copy(update={"result": plan.result.model_copy(update={"tensors": "0" * 64})})
    match = "Expected the plan to leave the model it describes, but it left another"
    refused(tmp_path, Plain(), prune(remove=None, plan=plan, schedule={"start": 0}), match=match)


def test_plan_for_other_weights_without_data_to_fit_anew(tmp_path):
    """Before a test there may be no training data; with other weights the fitted tensors are wrong."""
    module = Plain()
    before = snapshot(module)
    with pytest.raises(ValueError, match="Expected the weights that the plan's tensors were fitted to"):
        trainer_of(tmp_path, DepthPrune(plan=plan_for_plain())).test(module, loader(), verbose=False)
    assert snapshot(module)[0] == before[0]


def test_remove_before_test_warns(tmp_path):
    module = Plain()
    with pytest.warns(UserWarning, match=r"DepthPrune with a budget decides during a fit: .* nothing is pruned now"):
        trainer_of(tmp_path, prune()).test(module, loader(), verbose=False)
    assert len(find_units(module.net)) == 16


# Sharded strategies: the plan must be known before the model is wrapped. There is no GPU here, so setup alone is run.


def sharded(strategy, *callbacks):
    return SimpleNamespace(
        strategy=strategy,
        callbacks=list(callbacks),
        state=SimpleNamespace(fn="fit"),
        loggers=[],
        checkpoint_callback=None,
        fast_dev_run=False,
        current_epoch=0,
        global_step=0,
    )


@pytest.fixture(params=[FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy])
def strategy(request):
    return request.param.__new__(request.param)


def test_sharding_without_a_plan(strategy):
    module, callback = Plain(), prune(schedule={})
    match = (
        rf"Expected DepthPrune\(plan=...\) with {type(strategy).__name__}, which shards the model before .* beforehand"
    )
    with pytest.raises(ValueError, match=match):
        callback.setup(sharded(strategy, callback), module, "fit")
    assert not Ledger.of(module).plans


def test_sharding_with_a_later_surgery(strategy):
    module, callback = Plain(), DepthPrune(plan=plan_for_plain(replace="identity"), schedule={"start": 1})
    with pytest.raises(
        ValueError, match="Expected schedule start=0 with .*, but got 1. Train the dense model in a fit"
    ):
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
    assert not callback._left(trainer, module)


# DistillRecover


def pruned_run(folder, *callbacks):
    module = Plain()
    fit(folder, module, prune(), *callbacks, ModelCheckpoint(filename="{epoch}", save_top_k=-1), epochs=3)
    return folder / "checkpoints"


def resume(folder, files, *callbacks, epoch=1):
    trainer_of(folder, *callbacks, epochs=3).fit(Plain(), loader(), ckpt_path=files / f"epoch={epoch}.ckpt")


def test_pruned_without_a_teacher(tmp_path):
    files = pruned_run(tmp_path)
    with pytest.raises(
        RuntimeError, match=r"none was saved: the model was pruned without DistillRecover.*teacher=path"
    ):
        resume(tmp_path / "again", files, prune(), DistillRecover())


def test_teacher_is_not_there(tmp_path):
    files = pruned_run(tmp_path, DistillRecover())
    (teacher,) = files.glob("teacher-*.safetensors")
    teacher.unlink()
    with pytest.raises(
        FileNotFoundError, match="Expected the dense teacher teacher-.* but it is not there. Copy it beside"
    ):
        resume(tmp_path / "again", files, prune(), DistillRecover())


def test_teacher_is_another_file(tmp_path):
    files = pruned_run(tmp_path, DistillRecover())
    (teacher,) = files.glob("teacher-*.safetensors")
    teacher.write_bytes(teacher.read_bytes()[:-1] + b"\x01")
    with pytest.raises(
        ValueError, match="Expected the teacher that the run was started with at .*, but its sha256 differs"
    ):
        resume(tmp_path / "again", files, prune(), DistillRecover())


def test_teacher_that_answers_otherwise(tmp_path):
    with pytest.raises(ValueError, match=r"teacher and student to answer alike, but got shapes \(8, 5\) and \(8, 4\)"):
        fit(tmp_path, Plain(), prune(), DistillRecover(teacher=tiny_vit(num_classes=5)))


@pytest.mark.parametrize("kind", ["module", "safetensors", "folder"])
def test_teachers_by_name(tmp_path, kind):
    """A module, a state dict of the dense network, or a saved folder give the same recovery as the dense default."""
    from safetensors.torch import save_file

    from prunerecover import save_pruned

    torch.manual_seed(5)
    teacher = tiny_vit(drop_path_rate=0.2)
    path = tmp_path / "dense.safetensors"
    if kind == "safetensors":
        save_file(teacher.state_dict(), path)
    elif kind == "folder":
        path = save_pruned(teacher, Plan(), tmp_path / "dense")
    modules = []
    for given in (teacher, teacher if kind == "module" else path):
        torch.manual_seed(1)
        module = Plain()
        fit(tmp_path / "run", module, prune(), DistillRecover(teacher=given))
        modules.append(module)
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in modules), strict=True))


# Checkpoints


class OtherGroups(Plain):
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)


class OtherNames(Plain):
    def __init__(self):
        super().__init__()
        self.extra = nn.Parameter(torch.zeros(1))

    def loss(self, batch):
        return super().loss(batch) + self.extra.sum()


def test_resumed_with_other_optimizers(tmp_path):
    files = pruned_run(tmp_path)
    match = (
        r"Expected optimizers with \[2\] parameter groups, as in the checkpoint, but configure_optimizers made \[1\]"
    )
    with pytest.raises(RuntimeError, match=match):
        trainer_of(tmp_path, prune(), epochs=3).fit(OtherGroups(), loader(), ckpt_path=files / "epoch=1.ckpt")


def test_resumed_with_parameters_of_another_name(tmp_path):
    module = OtherNames()
    fit(tmp_path, module, prune(), ModelCheckpoint(filename="{epoch}", save_top_k=-1))
    file = tmp_path / "checkpoints" / "epoch=1.ckpt"
    content = torch.load(file, weights_only=True)
    del content["state_dict"]["extra"]
    torch.save(content, file)
    with pytest.raises(
        RuntimeError, match="Expected parameter 'extra' of the checkpoint's optimizer in Plain, but it has"
    ):
        trainer_of(tmp_path, prune(), epochs=3).fit(Plain(), loader(), ckpt_path=file)


def test_checkpoint_of_another_network(tmp_path):
    files = pruned_run(tmp_path)
    module = Plain(depth=3)
    before = repr(module)
    with pytest.raises(ValueError, match="Expected the model that the plan was made for .* this model has 3 blocks"):
        trainer_of(tmp_path, prune()).test(module, loader(), ckpt_path=files / "epoch=1.ckpt", verbose=False)
    assert repr(module) == before


def test_checkpoint_of_a_newer_version(tmp_path):
    file = pruned_run(tmp_path) / "epoch=1.ckpt"
    content = torch.load(file, weights_only=True)
    content[KEY]["schema"] = "prunerecover.ledger/2"
    torch.save(content, file)
    with pytest.raises(
        ValueError, match="ledger of schema prunerecover.ledger/1, but got prunerecover.ledger/2. .* install"
    ):
        trainer_of(tmp_path, prune()).test(Plain(), loader(), ckpt_path=file, verbose=False)


def test_pruned_checkpoint_without_the_callbacks(tmp_path):
    """Nobody replays the plan: Lightning refuses, and load_pruned is what opens it."""
    file = pruned_run(tmp_path) / "epoch=1.ckpt"
    with pytest.raises(RuntimeError, match="Missing key"):
        trainer_of(tmp_path).test(Plain(), loader(), ckpt_path=file, verbose=False)


def test_dense_checkpoint_of_another_run_undoes_the_surgery(tmp_path):
    dense, module = Plain(), Plain()
    runner = fit(tmp_path / "dense", dense)
    runner.save_checkpoint(tmp_path / "dense.ckpt")
    runner = fit(tmp_path, module, prune())
    with pytest.warns(UserWarning, match="nothing is pruned now"):
        runner.test(module, loader(), ckpt_path=tmp_path / "dense.ckpt", verbose=False)
    images = dataset().tensors[0]
    assert torch.equal(module.net.eval()(images), dense.net.eval()(images))


# Schedule


@pytest.mark.parametrize(
    ("schedule", "counts", "events"),
    [
        (PruneSchedule(), {}, []),
        (PruneSchedule(), {"block": 0}, []),
        (PruneSchedule(), {"block": 2, "mlp": 0}, [(0, {"block": 2})]),
        (PruneSchedule(start=3), {"block": 2, "mlp": 1}, [(3, {"block": 2, "mlp": 1})]),
        (PruneSchedule(every=2, step=2), {"mlp": 3}, [(0, {"mlp": 2}), (2, {"mlp": 1})]),
        (PruneSchedule(every=1), {"mlp": 2}, [(0, {"mlp": 1}), (1, {"mlp": 1})]),
        (
            PruneSchedule(start=1, every=1, step=2, alternate=True),
            {"attention": 3, "activation": 2},
            [(1, {"attention": 2}), (2, {"activation": 2}), (3, {"attention": 1})],
        ),
        (
            PruneSchedule(every=3, step=1, alternate=True),
            {"a": 1, "b": 3},
            [(0, {"a": 1}), (3, {"b": 1}), (6, {"b": 1}), (9, {"b": 1})],
        ),
    ],
)
def test_schedule_events(schedule, counts, events):
    assert schedule.events(counts) == events
    total = {kind: sum(taken.get(kind, 0) for _, taken in events) for kind in counts}
    assert total == dict(counts)


@pytest.mark.parametrize("max_epochs", [None, -1, 5])
def test_schedule_that_fits(max_epochs):
    PruneSchedule().check_fits([0, 4], max_epochs)
    PruneSchedule().check_fits([], 0)


# What the user sees


class Recorder(pl.loggers.Logger):
    name, version = "recorder", 0

    def __init__(self):
        super().__init__()
        self.lines = []

    def log_metrics(self, metrics, step=None):
        self.lines.append((step, dict(metrics)))

    def log_hyperparams(self, *args, **kwargs):
        pass


def test_surgery_reaches_logger_and_progress_bar(tmp_path):
    module, recorder = Plain(), Recorder()
    schedule = {"start": 1, "every": 1, "step": 1, "alternate": True}
    callback = prune(remove={"attention": 1, "activation": 1}, schedule=schedule)
    runner = fit(tmp_path, module, callback, epochs=3, logger=recorder)
    told = [(step, line) for step, line in recorder.lines if "surgery/params" in line]
    assert [step for step, _ in told] == [6, 12]
    assert [line["surgery/removed_units"] for _, line in told] == [1, 2]
    params = [sum(p.numel() for p in Plain().parameters()), *(line["surgery/params"] for _, line in told)]
    assert params[0] > params[1]
    assert params[-1] == sum(p.numel() for p in module.net.parameters())
    assert all(line["surgery/macs"] > 0 for _, line in told)
    assert runner.progress_bar_metrics["removed_units"] == 2


def test_report_is_written(tmp_path):
    module = Plain()
    pl.seed_everything(3, verbose=False)
    runner = trainer_of(tmp_path, prune(), PruneReport(pairs=2), epochs=3)
    runner.fit(module, loader(), loader(shuffle=False))
    folder = tmp_path / "report"
    assert Plan.load(folder / "plan.json").edits == Ledger.of(module).plans["net"].edits
    text = (folder / "report.md").read_text()
    assert "MACs" in text
    (event,) = Ledger.of(module).events
    assert Report.load(folder).search == SearchCost(seconds=event["seconds"])
    assert event["seconds"] > 0
    history = PruneReport()
    history.load_state_dict(runner.callbacks[1].state_dict())
    assert [epoch for epoch, _ in history.history["val_acc"]] == [0, 1, 2]
    assert "removed_units" not in history.history


def test_report_states_what_a_search_before_the_fit_took(tmp_path):
    module, cost = Plain(), {"seconds": 60.0, "peak_memory_bytes": 7, "trials": 5}
    plan = plan_depth(module.net, remove={"attention": 1}, batches=loader(), replace="zero")
    plan = plan.model_copy(update={"evidence": {**plan.evidence, "search": cost}})
    trainer_of(tmp_path, DepthPrune(plan=plan), PruneReport(pairs=0), epochs=1).fit(module, loader())
    assert Report.load(tmp_path / "report").search == SearchCost(**cost)


@pytest.mark.slow
def test_report_history_goes_on_after_resume(tmp_path):
    def run(module, **settings):
        report = PruneReport(pairs=0)
        every = ModelCheckpoint(tmp_path / "files", filename="{epoch}", save_top_k=-1)
        runner = trainer_of(tmp_path, prune(), report, every, epochs=3)
        pl.seed_everything(3, verbose=False)
        runner.fit(module, loader(), loader(shuffle=False), **settings)
        return report.history

    whole = run(Plain())
    assert run(Plain(), ckpt_path=tmp_path / "files" / "epoch=1.ckpt") == whole


def test_no_report_of_a_trial_run(tmp_path):
    fit(tmp_path, Plain(), prune(schedule={"start": 0}), PruneReport(), fast_dev_run=True)
    assert not (tmp_path / "report").exists()


def test_merged_copy_answers_like_the_live_module(tmp_path):
    from prunerecover import load_pruned

    module = Plain()
    fit(tmp_path, module, prune(remove={"attention": 1, "activation": 2}, merge="copy"), DistillRecover())
    merged = load_pruned(tmp_path / "checkpoints" / "pruned")
    images = dataset().tensors[0]
    assert (merged(images) - module.eval().net(images)).abs().max() <= 1e-4
    assert sum(p.numel() for p in merged.parameters()) < sum(p.numel() for p in module.parameters())
    assert Ledger.of(module).plans["net"].edits == Ledger.of(copy.deepcopy(module)).plans["net"].edits
