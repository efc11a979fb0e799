"""WidthPrune keeps multiples: in one surgery, in several, and says before training that it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases.sampling import one_in
from cases.width.width_prune import fit, left, prune
from torch import nn

from prunerecover import Plan


def widths(network: nn.Module) -> list[int]:
    return [module.out_channels for module in network.modules() if isinstance(module, nn.Conv2d)]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", one_in(2, [{"start": 1}, {"start": 0, "every": 1, "times": 2}]))
def test_convolutions_keep_multiples(schedule: dict[str, int], tmp_path: Path) -> None:
    module = fit(tmp_path, prune(round_to=8, schedule=schedule))
    assert all(width % 8 == 0 for width in widths(module.net))
    assert 0.4 < left(module) <= 0.5
    assert Plan.load(tmp_path / "files" / "plan.json").made_by.arguments["round_to"] == 8


def test_what_no_multiples_allow_is_refused_before_training(tmp_path: Path) -> None:
    callback = prune(round_to={"channel": 64}, schedule={"start": 2})
    with pytest.raises(ValueError, match="but at most 0.0% can go. Widths stay multiples of up to 64: a lower round"):
        fit(tmp_path, callback)
    assert not (tmp_path / "files").exists()


def test_runs_from_before_there_were_multiples_go_on() -> None:
    """What a checkpoint says of how it was planned does not name it, and another number is another run."""
    assert "round_to" not in prune().planning.deciding
    assert prune(round_to=8).planning.deciding["round_to"] == 8
