"""Shares of the latency are estimated from what half of each kind saves of it, and from counted MACs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from prunerecover.depth.search.latency_shares import LEAST, LatencyShares
from prunerecover.plan.units import Unit

MACS = {"attention": 0.03, "mlp": 0.05, "activation": 0.0}
LATENCY = {"attention": 0.045, "mlp": 0.04, "activation": 0.01}


def units(**counts: int) -> list[Unit]:
    return [Unit(f"{kind}.{i}", kind, (), 1, 1, "") for kind, n in counts.items() for i in range(n)]  # type: ignore[arg-type]


def half(kind: str, cost: str) -> float:
    return 6 * (LATENCY if cost == "latency" else MACS)[kind]


def macs_of(chosen: Sequence[Unit]) -> float:
    return sum(MACS[unit.kind] for unit in chosen)


def test_a_set_saves_what_its_kinds_save() -> None:
    shares = LatencyShares(["attention", "mlp", "attention"], half, macs_of)
    assert shares.of(units(attention=2, mlp=3)) == pytest.approx(2 * LATENCY["attention"] + 3 * LATENCY["mlp"])
    assert shares.of([]) == 0.0


def test_kinds_are_measured_once() -> None:
    asked: list[tuple[str, str]] = []

    def noted(kind: str, cost: str) -> float:
        asked.append((kind, cost))
        return half(kind, cost)

    shares = LatencyShares(["attention", "mlp"], noted, macs_of)
    for count in (1, 2, 3):
        shares.of(units(attention=count, mlp=1))
    assert sorted(asked) == [(kind, cost) for kind in ("attention", "mlp") for cost in ("latency", "macs")]


def test_what_costs_no_macs_saves_nothing_and_noise_is_no_saving() -> None:
    """A clock may say that a tiny network gets slower by what goes."""
    slower = LatencyShares(["attention"], lambda _, cost: -0.1 if cost == "latency" else 0.2, macs_of)
    assert slower.of(units(attention=1)) == pytest.approx(LEAST * MACS["attention"])
    assert LatencyShares(["activation"], half, macs_of).of(units(activation=2)) == 0.0
