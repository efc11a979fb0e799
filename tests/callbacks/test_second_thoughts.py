"""What a user does next: try a run for one batch, resume with other arguments, name the target once."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
from cases.models.habits import Plain, TwoNetworks, loader, tiny_vit
from lightning.pytorch.callbacks import ModelCheckpoint

from prunerecover import plan_depth
from prunerecover.callbacks import DepthPrune, DistillRecover, PruneReport
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.schedules.schedule import schedule_of

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


def test_trial_run_tries_the_surgery_and_leaves_no_files(tmp_path):
    module = Plain()
    callbacks = [DepthPrune(remove={"block": 1}, schedule={"start": 5}, calibration=8), DistillRecover(), PruneReport()]
    runner = pl.Trainer(fast_dev_run=True, callbacks=callbacks, default_root_dir=tmp_path, **QUIET)
    runner.fit(module, loader())
    assert len(Ledger.of(module).events) == 1
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize(
    "changed",
    [
        [DepthPrune(remove={"activation": 2}, calibration=8)],
        [DepthPrune(remove={"block": 1}, calibration=8), DepthPrune(remove={"activation": 1}, calibration=8)],
    ],
    ids=["more units", "another in front"],
)
def test_resuming_with_other_arguments_is_refused(tmp_path, changed):
    first = [DepthPrune(remove={"activation": 1}, calibration=8), ModelCheckpoint(tmp_path, filename="{epoch}")]
    pl.Trainer(max_epochs=1, callbacks=first, **QUIET).fit(Plain(), loader())
    again = pl.Trainer(max_epochs=2, callbacks=changed, enable_checkpointing=False, **QUIET)
    with pytest.raises(ValueError, match="with the arguments of the run that is resumed"):
        again.fit(Plain(), loader(), ckpt_path=tmp_path / "epoch=0.ckpt")


@pytest.mark.slow
def test_resuming_with_fewer_callbacks_is_told(tmp_path):
    later = DepthPrune(remove={"attention": 1}, schedule={"start": 1}, calibration=8)
    first = [DepthPrune(remove={"activation": 1}, calibration=8), later]
    every = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    pl.Trainer(max_epochs=2, callbacks=[*first, every], **QUIET).fit(Plain(), loader())
    again = DepthPrune(remove={"activation": 1}, calibration=8)
    runner = pl.Trainer(max_epochs=2, callbacks=[again], enable_checkpointing=False, **QUIET)
    with pytest.warns(UserWarning, match="a run that also had DepthPrune.1, which this Trainer has not"):
        runner.fit(Plain(), loader(), ckpt_path=tmp_path / "epoch=0.ckpt")


def test_target_is_named_once(tmp_path):
    module = TwoNetworks()
    callbacks = [
        DepthPrune(remove={"activation": 1}, target="net", calibration=8),
        DistillRecover(),
        PruneReport(pairs=0),
    ]
    runner = pl.Trainer(
        max_epochs=1, callbacks=callbacks, default_root_dir=tmp_path, enable_checkpointing=False, **QUIET
    )
    runner.fit(module, loader())
    assert list(Ledger.of(module).plans) == ["net"]
    assert (tmp_path / "report" / "report.md").is_file()


def test_gated_model_says_why_it_has_no_activation():
    import torch
    from cases.models.habits import Wrapped
    from torch.utils.data import DataLoader, TensorDataset

    tokens = DataLoader(TensorDataset(torch.randint(0, 16, (8, 6))), 4)
    runner = pl.Trainer(
        max_epochs=1, callbacks=[DepthPrune(remove={"activation": 1})], enable_checkpointing=False, **QUIET
    )
    with pytest.raises(ValueError, match="gated"):
        runner.fit(Wrapped(), tokens)


def test_wrong_types_say_what_to_pass():
    batch = loader().dataset.tensors[0][:8]
    with pytest.raises(TypeError, match=r"budget to be a Budget, but got dict.*remove="):
        plan_depth(tiny_vit(), {"block": 1}, batches=[batch])
    with pytest.raises(TypeError, match=r"budget to be a Budget, but got dict\. Use remove="):
        DepthPrune({"block": 1})
    with pytest.raises(TypeError, match=r"an iterable of batches, but got one Tensor\. Pass batches=\[batch\]"):
        plan_depth(tiny_vit(), remove={"block": 1}, batches=batch)
    with pytest.raises(ValueError, match=r"schedule to have start, every, step, alternate, times, by, but got 'begin'"):
        schedule_of({"begin": 2})


def test_one_pattern_may_be_given_as_a_string():
    batch = loader().dataset.tensors[0][:16]
    plan = plan_depth(tiny_vit(), remove={"block": 1}, batches=[batch], ignore="blocks.[01]")
    assert plan.removed == {"block": ("blocks.2",)}
