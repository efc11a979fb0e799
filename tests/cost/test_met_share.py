"""What is planned for a share of a cost is planned anew until the share that is measured meets it."""

from __future__ import annotations

import math

import pytest

from prunerecover.cost.met_share import TRIES, met_share


def test_what_is_met_at_once_is_measured_once() -> None:
    measured: list[float] = []

    def measure(planned: float) -> float:
        measured.append(planned)
        return planned

    assert met_share("latency", 0.3, lambda share: share, measure, below=0.01, above=0.01) == (0.3, 0.3)
    assert measured == [0.3]


@pytest.mark.parametrize("efficiency", [0.5, 0.8, 1.3])
def test_the_share_that_is_asked_for_follows_what_was_measured(efficiency: float) -> None:
    _, saved = met_share(
        "latency", 0.3, lambda share: share, lambda planned: efficiency * planned, below=0.01, above=0.01
    )
    assert saved == pytest.approx(0.3)


def test_of_what_saves_enough_the_least_is_taken() -> None:
    """Units are large: shares of 0.1, which save half as much again as they say."""

    def in_units(share: float) -> int:
        return math.ceil(10 * share - 1e-9)

    planned, saved = met_share("macs", 0.3, in_units, lambda units: 0.15 * units, below=0.0, above=0.0)
    assert (planned, saved) == (2, pytest.approx(0.3))


def test_a_share_that_is_not_met_is_told() -> None:
    asked: list[float] = []

    def plan(share: float) -> int:
        asked.append(share)
        return len(asked)

    said = r"The plan saves 20.0% of the latency for a budget of 30.0%, and what was planned for more saves no more"
    with pytest.warns(UserWarning, match=said):
        planned, saved = met_share("latency", 0.3, plan, lambda _: 0.2, below=0.01, above=0.01)
    assert (planned, saved) == (1, 0.2)
    assert len(asked) == TRIES


def test_what_is_refused_at_once_raises_and_later_ends_the_search() -> None:
    def refused(share: float) -> float:
        raise ValueError("so much cannot go")

    def at_most(share: float) -> float:
        return share if share <= 0.3 else refused(share)

    with pytest.raises(ValueError, match="so much cannot go"):
        met_share("latency", 0.3, refused, lambda planned: planned, below=0.0, above=0.0)
    with pytest.warns(UserWarning, match=r"The plan saves 15.0%"):
        assert met_share("latency", 0.3, at_most, lambda planned: planned / 2, below=0.0, above=0.0) == (0.3, 0.15)
