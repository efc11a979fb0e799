"""Warnings of fits that remove less than asked for, and plans that come late or do not fit before a test."""

from __future__ import annotations

import pytest
from cases.models.habits import Plain, dataset, loader
from cases.refusals import plan_for_plain, refused, snapshot
from cases.trainers import fit, prune, trainer_of
from torch.utils.data import DataLoader, TensorDataset

from prunerecover import Budget, find_units
from prunerecover.callbacks import DepthPrune
from prunerecover.callbacks.ledger.ledger import Ledger


@pytest.mark.slow
def test_plan_is_read_when_the_fit_is_set_up(tmp_path):
    """A recipe may name a plan before `prunerecover plan` writes it."""
    path = tmp_path / "later.json"
    callback = DepthPrune(plan=path)
    refused(tmp_path, Plain(), callback, error=FileNotFoundError, match="Expected a plan file at .*later.json")
    plan = plan_for_plain()
    plan.save(path)
    module = Plain()
    fit(tmp_path, module, callback)
    assert Ledger.of(module).plans["net"].removed == plan.removed


@pytest.mark.parametrize("settings", [{"max_steps": 3}, {"data": DataLoader(TensorDataset(*dataset()[:0]), 8)}])
def test_fit_that_ends_before_the_surgery(tmp_path, settings):
    match = "The fit ended before 1 surgeries of DepthPrune.0, the first at .* epoch 1: .* less pruned than asked for"
    with pytest.warns(UserWarning, match=match):
        fit(tmp_path, Plain(), prune(), **settings)


def test_budget_below_one_unit(tmp_path):
    with pytest.warns(UserWarning, match="DepthPrune.0 will remove nothing: .*ratio.* is less than one unit"):
        fit(tmp_path, Plain(), prune(remove=None, budget=Budget(ratio={"attention": 0.1})))


@pytest.mark.filterwarnings("ignore:Only")
def test_share_below_one_unit_is_said_and_done(tmp_path):
    """A plan without edits changes nothing, once."""
    module = Plain()
    with pytest.warns(UserWarning, match="DepthPrune.0 removed nothing: its plan has no edits"):
        fit(tmp_path, module, prune(remove=None, budget=Budget(params=0.0), importance="output_divergence"), epochs=3)
    assert [event.units for event in Ledger.of(module).events] == [()]
    assert len(find_units(module.net)) == 12


def test_plan_for_other_weights_without_data_to_fit_anew(tmp_path):
    """Before a test there may be no training data, and with other weights the fitted tensors are wrong."""
    module = Plain()
    before = snapshot(module)
    with pytest.raises(ValueError, match="Expected the weights that the plan's tensors were fitted to"):
        trainer_of(tmp_path, DepthPrune(plan=plan_for_plain())).test(module, loader(), verbose=False)
    assert snapshot(module)[0] == before[0]


def test_remove_before_test_warns(tmp_path):
    module = Plain()
    with pytest.warns(UserWarning, match=r"DepthPrune with a budget decides during a fit: .* nothing is pruned now"):
        trainer_of(tmp_path, prune()).test(module, loader(), verbose=False)
    assert len(find_units(module.net)) == 12
