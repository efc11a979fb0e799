"""Random sequences of removals in many architectures: what is left runs, learns, and comes back from a file exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases.depth.architectures import quick_or_slow
from cases.depth.removal import check_sequence, removals_in
from cases.sampling import one_in

SEEDS = 5


@pytest.mark.parametrize("seed", one_in(5, range(SEEDS)))
@pytest.mark.parametrize("name", quick_or_slow())
def test_random_sequence_leaves_a_network_that_a_file_makes_again(name: str, seed: int, tmp_path: Path) -> None:
    check_sequence(removals_in(name), seed, tmp_path)
