"""A search says beforehand about how long it takes: as long as searches that were measured."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cases.models.habits import dataset, tiny_vit

from prunerecover import Budget
from prunerecover.depth.search.expected_passes import expected_passes
from prunerecover.plan.units import Unit
from prunerecover.session.session import Session

ATTENTIONS = [Unit(f"blocks.{i}.attn", "attention", (), 0, 0) for i in range(12)]
ACTIVATIONS = [Unit(f"blocks.{i}.mlp.act", "activation", (), 0, 0) for i in range(12)]
PARTS = [*ATTENTIONS, *ACTIVATIONS]


@pytest.mark.parametrize(
    ("units", "budget", "search", "measured"),
    [
        (PARTS, Budget(remove={"attention": 2, "activation": 4}), "greedy", 23.3),
        (PARTS, Budget(remove={"attention": 2, "activation": 6}), "greedy", 18.7),  # benchmarks.depth
    ],
)
def test_deit_tiny_takes_about_as_long_as_expected(units, budget, search, measured):
    expected = expected_passes(units, budget, search)
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
