"""Quality, its steps, and a file without what was before a step."""

from __future__ import annotations

import pytest
import torch
from cases.fits.quality import one_by_one, pruned
from cases.trainers import every_epoch

from prunerecover import Budget, Quality
from prunerecover.callbacks.schedules.steps import cost_left, step_of, total_of

ACC = Quality("val_acc", drop=0.01)


def test_a_drop_is_a_difference_in_either_mode():
    assert ACC.worst(0.9) == pytest.approx(0.89)
    assert ACC.holds(0.89, dense=0.9)
    assert not ACC.holds(0.8899, dense=0.9)
    loss = Quality("val_loss", drop=0.1, mode="min")
    assert loss.worst(2.0) == 2.1
    assert loss.holds(2.1, dense=2.0)
    assert not loss.holds(2.11, dense=2.0)
    assert not ACC.holds(float("nan"), dense=0.9)
    assert not loss.holds(float("nan"), dense=0.9)
    assert Quality("val_acc", drop=0.01, baseline=0.8).holds(0.79, dense=0.95)


def test_a_step_is_a_tenth_of_the_macs_unless_more_is_said():
    assert step_of(None, ACC) == Budget(macs=0.1)
    assert step_of(Budget(latency=0.2), ACC) == Budget(latency=0.2)


def test_steps_add_up_to_most_and_no_further():
    quality = Quality("val_acc", drop=0.01, most=0.5)
    several = Budget(macs=0.2, params=0.3)
    totals = [several, Budget(macs=0.4, params=0.5), Budget(macs=0.5, params=0.5), None]
    assert [total_of(several, n, quality) for n in (1, 2, 3, 4)] == totals
    assert total_of(Budget(macs=0.1), 3, quality) == Budget(macs=0.3)  # and not 0.30000000000000004
    served = Budget(memory=0.1, batch=8, tokens=64)
    assert total_of(served, 2, quality) == Budget(memory=0.2, batch=8, tokens=64)
    assert total_of(Budget(remove={"block": 2}), 3, quality) == Budget(remove={"block": 6})


def test_what_is_left_is_what_each_surgery_leaves_of_what_it_found():
    assert cost_left([{"macs": 0.1}, {"macs": 0.5}], Budget(macs=0.2)) == {"macs": pytest.approx(0.45)}
    assert cost_left([{"block": 1}], Budget(remove={"block": 1})) == {}


@pytest.mark.slow
def test_a_file_without_what_was_before_the_step_is_not_gone_on_with(tmp_path):
    pruned(tmp_path, one_by_one(), every_epoch(tmp_path))
    content = torch.load(tmp_path / "epoch=1.ckpt", weights_only=True)
    del content["prunerecover_kept"]
    torch.save(content, tmp_path / "cut.ckpt")
    with pytest.raises(RuntimeError, match="Expected the network of before the last step in the checkpoint"):
        pruned(tmp_path / "on", one_by_one(), resume=tmp_path / "cut.ckpt")
