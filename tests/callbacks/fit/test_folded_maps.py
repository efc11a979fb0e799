"""Maps folded for blocks that go in a fit: resumed equals uninterrupted, and averaged copies and new fits have them."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
from cases.models.habits import Plain, loader
from cases.trainers import assert_same
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

from prunerecover.callbacks import DepthPrune
from prunerecover.callbacks.ledger.ledger import Ledger

ONCE = {"remove": {"block": 1}, "schedule": {"start": 1}, "ignore": ["blocks.0"]}
TWICE = {**ONCE, "remove": {"block": 2}, "schedule": {"start": 1, "every": 1, "step": 1}}


def fit(folder, prune, averaged=False, resume=None):
    pl.seed_everything(7, verbose=False)
    module = Plain()
    callbacks = [DepthPrune(**prune, calibration=16), ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)]
    callbacks += [EMAWeightAveraging(decay=0.5)] if averaged else []
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = pl.Trainer(max_epochs=4, callbacks=callbacks, **quiet)
    trainer.fit(module, loader(), loader(shuffle=False), ckpt_path=resume)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(("prune", "averaged"), [(ONCE, False), (ONCE, True), (TWICE, False)])
def test_resumed_equals_uninterrupted(tmp_path, prune, averaged):
    whole = fit(tmp_path / "whole", prune, averaged)
    assert any(edit.op == "fold" for plan in Ledger.of(whole).plans.values() for edit in plan.edits)
    for epoch in (0, 2):
        part = fit(tmp_path / f"from{epoch}", prune, averaged, tmp_path / "whole" / f"epoch={epoch}.ckpt")
        assert_same(whole, part)
