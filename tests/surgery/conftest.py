"""Tests of surgery, with values of plans tuned for a few steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _briefly_tuned() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prunerecover.calibration.learning.EPOCHS", 1)
        patch.setattr("prunerecover.calibration.steps.WANTED_OUTPUTS", 64)
        yield
