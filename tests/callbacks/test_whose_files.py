"""Files beside the checkpoints belong to a single run, and a complete checkpoint suffices for a resume."""

from __future__ import annotations

import re
import shutil
import warnings

import pytest
import torch
from cases.models.habits import Plain, dataset, loader
from cases.refusals import plan_for_plain
from cases.trainers import assert_same, every_epoch, fit, prune, trainer_of
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

from prunerecover import DepthPrune, DistillRecover, Plan, PruneReport, load_pruned

REMOVE = {"attention": 1, "activation": 2}
COPY = {"merge": "copy", "replace": "calibrated", "remove": REMOVE, "schedule": {"start": 0, "every": 1, "step": 1}}
OTHER = {**COPY, "remove": {"mlp": 1, "attention": 2}}


def seeded():
    torch.manual_seed(7)
    return Plain()


def run(folder, resume=None, epochs=2, **arguments):
    module = seeded()
    fit(folder, module, prune(**{**COPY, **arguments}), every_epoch(folder), epochs=epochs, resume=resume)
    return module


def contents(folder):
    files = ("plan.json", "plan.safetensors", "pruned/plan.json", "pruned/model.safetensors")
    return {name: (folder / name).read_bytes() for name in files}


def ours(caught):
    return [str(w.message) for w in caught if "of this run" in str(w.message)]


@pytest.mark.slow
def test_a_second_run_leaves_the_files_of_the_first_alone(tmp_path):
    run(tmp_path)
    before = contents(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = run(tmp_path, **OTHER)
    assert contents(tmp_path) == before
    said = ours(caught)
    assert len(said) == 2
    assert "plan.json" in said[0]
    assert f"the plan of this run is at {tmp_path / 'plan-v1.json'}. Give each run a ModelCheckpoint(dirpath" in said[0]
    assert f"the merged copy of this run is at {tmp_path / 'pruned-v1'}." in said[1]
    assert Plan.load(tmp_path / "plan-v1.json").removed.keys() == {"mlp", "attention"}
    images = dataset().tensors[0]
    with torch.no_grad():
        torch.testing.assert_close(load_pruned(tmp_path / "pruned-v1")(images), module.net.eval()(images))


@pytest.mark.slow
def test_a_resumed_run_goes_on_in_its_own_files(tmp_path):
    run(tmp_path)
    run(tmp_path, **OTHER)
    first, names = contents(tmp_path), {path.name for path in tmp_path.iterdir() if path.suffix != ".ckpt"}
    again = next(tmp_path.glob("epoch=0-v1.ckpt"))
    before = Plan.load(tmp_path / "plan-v1.json")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(tmp_path, resume=again, **OTHER)
    assert not ours(caught)
    assert contents(tmp_path) == first
    assert names == {path.name for path in tmp_path.iterdir() if path.suffix != ".ckpt"}
    after = Plan.load(tmp_path / "plan-v1.json")
    assert after.edits == before.edits
    # Sharded strategies need the plan early: it has the fitted tensors of earlier surgeries, too.
    assert set(after.tensors) == set(before.tensors) == set(before.needed_tensors) != set()


@pytest.mark.slow
def test_a_broken_plan_beside_the_checkpoints_is_not_needed(tmp_path):
    whole = run(tmp_path)
    (tmp_path / "plan.json").write_text('{"schema": "prun')
    with pytest.warns(UserWarning, match=r"plan\.json is not needed, since the checkpoint holds its edits"):
        resumed = run(tmp_path, resume=tmp_path / "epoch=0.ckpt")
    assert_same(resumed, whole)
    assert Plan.load(tmp_path / "plan-v1.json").removed.keys() == {"attention", "activation"}


@pytest.fixture(scope="module")
def from_a_file(tmp_path_factory):
    """Return the folder and the module of a run by a plan file."""
    folder, module = tmp_path_factory.mktemp("run"), seeded()
    path = plan_for_plain(replace="identity").save(folder / "given" / "plan.json")
    fit(folder, module, DepthPrune(plan=path, merge="never"), every_epoch(folder), epochs=2)
    return folder, module


@pytest.mark.parametrize("content", [None, '{"schema": "prunerecover.pl'], ids=["missing", "cut off"])
def test_a_resume_and_a_test_do_without_the_plan_file_and_a_new_run_does_not(content, from_a_file, tmp_path):
    (folder, whole), resumed, broken = from_a_file, Plain(), tmp_path / "plan.json"
    if content is not None:
        broken.write_text(content)
    done = "The plan file is not needed, since the checkpoint holds what it did"
    callback, runner = DepthPrune(plan=broken, merge="never"), trainer_of(tmp_path, DepthPrune(plan=broken))
    with pytest.warns(UserWarning, match=f"{done}. Expect"):
        fit(tmp_path / "again", resumed, callback, epochs=2, resume=folder / "epoch=0.ckpt")
    assert_same(resumed, whole)
    with pytest.warns(UserWarning, match=done):
        runner.test(Plain(), loader(), ckpt_path=folder / "epoch=1.ckpt", verbose=False)
    for loop in (runner.fit, runner.test):
        with pytest.raises((FileNotFoundError, ValueError), match="Expected a plan .*at .*plan.json"):
            loop(Plain(), loader())


@pytest.mark.slow
def test_the_users_own_plan_beside_the_checkpoints_stays(tmp_path):
    path = plan_for_plain().save(tmp_path / "plan.json")
    before = path.read_bytes()
    fit(tmp_path, Plain(), DepthPrune(plan=path, merge="at_surgery"), every_epoch(tmp_path), epochs=2)
    assert path.read_bytes() == before
    assert len(Plan.load(tmp_path / "plan-v1.json").edits) > len(Plan.load(path).edits)
    resumed = DepthPrune(plan=path, merge="at_surgery")
    fit(tmp_path, Plain(), resumed, every_epoch(tmp_path), epochs=2, resume=tmp_path / "epoch=0.ckpt")


def written(folder):
    """Everything in a folder but checkpoints, with the time of writing."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".ckpt")
    return {path.relative_to(folder): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of a fit with averaged weights, and callbacks for a second start."""
    folder = tmp_path_factory.mktemp("finished")

    def callbacks():
        steps = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
        report, average = PruneReport(folder / "report", pairs=0), EMAWeightAveraging(decay=0.9)
        return [prune(merge="copy"), DistillRecover(), report, average, every_epoch(folder), steps]

    fit(folder, seeded(), *callbacks())
    return folder, callbacks


@pytest.mark.parametrize("file", ["epoch=1.ckpt", "step=12.ckpt"], ids=["from its end", "from its last step"])
def test_a_finished_run_begun_again_writes_nothing(finished, file):
    folder, callbacks = finished
    before = written(folder)
    assert {re.split("[-.]", path.parts[0])[0] for path in before} == {"plan", "pruned", "report", "teacher"}
    fit(folder, seeded(), *callbacks(), resume=folder / file)
    assert written(folder) == before


def test_a_kill_before_the_merged_copy_costs_nothing(tmp_path):
    run(tmp_path)
    before = load_pruned(tmp_path / "pruned")
    shutil.rmtree(tmp_path / "pruned")
    run(tmp_path, resume=tmp_path / "epoch=1.ckpt")
    assert_same(load_pruned(tmp_path / "pruned"), before)


def test_what_was_not_averaged_is_not_written(finished, tmp_path, caplog):
    folder, callbacks = finished
    *others, _, _ = callbacks()
    with caplog.at_level("INFO"):
        fit(tmp_path, seeded(), *others, every_epoch(tmp_path), resume=folder / "epoch=1.ckpt")
    assert f"nothing was left to train, so the merged copy at {tmp_path / 'pruned'} is left as it is" in caplog.text
    assert not (tmp_path / "pruned").exists()
    images, averaged = dataset().tensors[0], load_pruned(folder / "epoch=1.ckpt")
    torch.testing.assert_close(averaged(images), load_pruned(folder / "pruned")(images))
