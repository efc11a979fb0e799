"""Parts of searches over made-up units: a greedy choice, shares of the latency, the expected number of passes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from cases.models.habits import dataset, tiny_vit

from prunerecover import Budget
from prunerecover.depth.search.expected_passes import expected_passes
from prunerecover.depth.search.goals import Share
from prunerecover.depth.search.greedy import GreedySearch
from prunerecover.depth.search.latency_shares import LEAST, LatencyShares
from prunerecover.plan.units import Unit, names_of
from prunerecover.session.session import Session

PRICES = {"stem": 0.3, **{f"layer{i}": 0.05 for i in range(8)}}


class Saturating:
    """Each layer adds to the divergence, and no set goes beyond that of the stem, which ruins the network alone."""

    refused = ""

    def scores(self, gone: Sequence[Unit], units: Sequence[Unit]) -> list[float]:
        return [6.0 if "stem" in names_of((*gone, unit)) else min(1.4 * (len(gone) + 1), 6.0) for unit in units]

    def rough(self, units: Sequence[Unit]) -> list[float]:
        return self.scores((), units)


def test_what_a_unit_saves_beyond_the_budget_is_worth_nothing() -> None:
    units = [Unit(name, "layer", (name,), 1, 1) for name in PRICES]
    goal = Share(units, 0.2, lambda chosen: sum(PRICES[unit.name] for unit in chosen))
    chosen = GreedySearch(Saturating(), goal).run()
    assert {unit.name[:5] for unit in chosen} == {"layer"}
    assert len(chosen) == 4


MACS = {"attention": 0.03, "mlp": 0.05, "activation": 0.0}
LATENCY = {"attention": 0.045, "mlp": 0.04, "activation": 0.01}


def units(**counts: int) -> list[Unit]:
    return [Unit(f"{kind}.{i}", kind, (), 1, 1, "") for kind, n in counts.items() for i in range(n)]  # type: ignore[arg-type]


def half(kind: str, cost: str) -> float:
    return 6 * (LATENCY if cost == "latency" else MACS)[kind]


def macs_of(chosen: Sequence[Unit]) -> float:
    return sum(MACS[unit.kind] for unit in chosen)


def test_what_costs_no_macs_saves_nothing_and_noise_is_no_saving() -> None:
    """A clock may say that a tiny network gets slower by what goes."""
    slower = LatencyShares(["attention"], lambda _, cost: -0.1 if cost == "latency" else 0.2, macs_of)
    assert slower.of(units(attention=1)) == pytest.approx(LEAST * MACS["attention"])
    assert LatencyShares(["activation"], half, macs_of).of(units(activation=2)) == 0.0


ATTENTIONS = [Unit(f"blocks.{i}.attn", "attention", (), 0, 0) for i in range(12)]
ACTIVATIONS = [Unit(f"blocks.{i}.mlp.act", "activation", (), 0, 0) for i in range(12)]
PARTS = [*ATTENTIONS, *ACTIVATIONS]


@pytest.mark.parametrize(("activations", "measured"), [(4, 23.3), (6, 18.7)])  # benchmarks.depth
def test_deit_tiny_takes_about_as_long_as_expected(activations, measured):
    expected = expected_passes(PARTS, Budget(remove={"attention": 2, "activation": activations}), "greedy")
    assert measured / 1.5 < expected < measured * 1.5


def test_only_units_that_may_go_and_steps_that_are_made_count():
    few = expected_passes(PARTS, Budget(ratio={"attention": 0.5}), "greedy")
    assert few == expected_passes(ATTENTIONS, Budget(remove={"attention": 6}), "greedy")
    once = expected_passes(PARTS, Budget(macs=0.2), "one_shot")
    assert once < expected_passes(PARTS, Budget(macs=0.2), "greedy")
    assert expected_passes(PARTS, Budget(macs=0.2), "exact") > 20


def test_a_pass_is_timed_on_a_few_samples_and_counted_for_all(monkeypatch):
    sizes, ticks = [], iter([0.0, 4.0, 10.0, 11.0])
    network = tiny_vit()
    session = Session(network, [dataset(40).tensors[0]])
    assert session.example
    session.model.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    monkeypatch.setattr("prunerecover.session.session.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    assert session.pass_seconds == 1.0 / 4 * 40
    assert sizes == [4, 4]
