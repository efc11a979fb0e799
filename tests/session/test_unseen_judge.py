"""Whole plans are compared on samples that no choice was made by, where there are any."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from prunerecover.session.pruned_output import unseen_judge_of
from prunerecover.session.session import Session


@pytest.mark.parametrize(("further", "compared"), [(140, range(72, 172)), (60, range(3, 32, 4)), (0, range(3, 32, 4))])
def test_whole_plans_are_compared_behind_the_samples_of_tuning(further: int, compared: range) -> None:
    """Here, 40 further samples serve the tuning. With too few behind, plans are compared on the held-out samples."""
    numbers = torch.arange(32.0 + further)[:, None].split(8)
    session = Session(nn.Linear(1, 2), numbers).on_first(32)
    judge = unseen_judge_of(session.model, session.samples)
    assert torch.cat([batch.args[0] for batch in judge.batches]).flatten().tolist() == list(compared)
