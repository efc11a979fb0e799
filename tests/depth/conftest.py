"""Values are tuned for a few steps, but where tests are of how well they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

IN_FULL = ("test_branch_fits", "test_family_fits", "test_graph_fits", "test_program")


@pytest.fixture(scope="module", autouse=True)
def _briefly_tuned_plans(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem not in IN_FULL:
            patch.setattr("prunerecover.calibration.learning.EPOCHS", 1)
            patch.setattr("prunerecover.calibration.steps.WANTED_OUTPUTS", 64)
        yield
