"""Whole plans are compared on samples that no choice was made by, where there are any."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from prunerecover.session.pruned_output import unseen_judge_of
from prunerecover.session.session import Session


@pytest.mark.parametrize(("further", "compared"), [(40, range(52, 72)), (0, range(3, 32, 4))])
def test_whole_plans_are_compared_on_the_later_half_of_the_further_samples(further: int, compared: range) -> None:
    """Without further samples, on the held-out ones."""
    numbers = torch.arange(32.0 + further)[:, None].split(8)
    session = Session(nn.Linear(1, 2), numbers).on_first(32)
    judge = unseen_judge_of(session.model, session.samples)
    assert torch.cat([batch.args[0] for batch in judge.batches]).flatten().tolist() == list(compared)
