"""Refused fits, and a plan for the plain module."""

from __future__ import annotations

import pytest
import torch
from cases.models.habits import Plain, dataset
from cases.trainers import fit

from prunerecover import plan_depth
from prunerecover.callbacks.ledger.ledger import Ledger


def snapshot(module):
    return repr(module), {k: v.clone() for k, v in module.state_dict().items()}


def refused(folder, module, *callbacks, error=ValueError, match, data=None, **settings):
    """Check that the fit stops with this message before any step, and leaves the module unchanged."""
    before = snapshot(module)
    with pytest.raises(error, match=match):
        fit(folder, module, *callbacks, data=data, **settings)
    text, weights = snapshot(module)
    assert text == before[0]
    assert all(torch.equal(value, weights[name]) for name, value in before[1].items())
    assert not Ledger.of(module).plans
    assert not Ledger.of(module).adapters
    assert "training_step" not in vars(module)


def plan_for_plain(**arguments):
    torch.manual_seed(3)
    settings = {"remove": {"activation": 1}, "importance": "magnitude", "batches": [dataset().tensors[0]]}
    return plan_depth(Plain().net, **{**settings, **arguments})
