"""Refinement finds what scores alone do not show, and never ends worse than it began."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prunerecover.library.edits import Fit
from prunerecover.library.variants import DENSE, LibrarySite, Variant
from prunerecover.refusal import Refusal
from prunerecover.solvers.program import Option, Program
from prunerecover.solvers.refine import Refiner
from prunerecover.solvers.state import State
from prunerecover.store.search_store import SearchStore

SITES = ("a", "b", "c")
ALONE = {"a": 1.0, "b": 1.1, "c": 1.2}  # of a site that is gone


class Interacting:
    """A library of three sites: a and b cost far more together than their scores add up to."""

    stations = ()

    def __init__(self, together: float) -> None:
        self.together, self.judged, self.store = together, 0, SearchStore()
        variants = (Variant(DENSE), Variant("gone", leaves="zero"))
        self.sites = {name: LibrarySite(name, "mlp", None, (), variants) for name in SITES}
        self.walks = SimpleNamespace(walk=lambda chosen, **_: (dict(chosen), {}))
        self.scorers = self.judging(self.divergence)

    @staticmethod
    def judging(divergence: Any) -> Any:
        near = SimpleNamespace(with_groups=lambda chosen: (divergence(chosen), np.array([divergence(chosen)])))
        return SimpleNamespace(divergence=divergence, near=lambda base, turn: near)

    def measured(self, site: str, name: str) -> float:
        raise AssertionError("all are known")

    def chosen(self, names: Mapping[str, str]) -> dict[str, Any]:
        return {site: (self.sites[site].variant(name), Fit()) for site, name in names.items() if name != DENSE}

    def changed(self, chosen: Mapping[str, Any], site: str, name: str, _: Any) -> dict[str, Any]:
        return {**{own: one for own, one in chosen.items() if own != site}, **self.chosen({site: name})}

    def divergence(self, chosen: Mapping[str, Any]) -> float:
        self.judged += 1
        return sum(ALONE[site] for site in chosen) + (self.together if {"a", "b"} <= set(chosen) else 0.0)


def program(saved: float = 0.2) -> Program:
    dense = Option(DENSE, 0.0, {"macs": 0.0})
    return Program({site: [dense, Option("gone", ALONE[site], {"macs": saved}, gone=True)] for site in SITES})


def gone(names: Mapping[str, str]) -> set[str]:
    return {site for site, name in names.items() if name != DENSE}


@pytest.mark.parametrize(("together", "best"), [(5.0, {"a", "c"}), (0.0, {"a", "b"})])
def test_the_set_that_is_best_together_is_found(together: float, best: set[str]) -> None:
    library: Any = Interacting(together)
    found = Refiner(library, program(), {"macs": 0.4}).run()
    assert gone(found.names) == best
    start = State(library, program().solve({"macs": 0.4}))
    assert found.divergence <= start.divergence
    assert found.divergence == library.divergence(library.chosen(found.names))


@pytest.mark.parametrize(("spread", "best"), [(0.5, {"a", "c"}), (50.0, {"a", "b"})])
def test_changes_that_samples_do_not_tell_from_noise_are_left_alone(spread: float, best: set[str]) -> None:
    """With c instead of b, the divergence is less by 0.9 on average, and on each group by so much more or less."""
    library: Any = Interacting(1.0)
    several = spread * np.array([-1.0, 1.0, -1.0, 1.0])

    def with_groups(chosen: Mapping[str, Any]) -> tuple[float, Any]:
        found = library.divergence(chosen)
        return found, found + ("c" in chosen) * several

    near = SimpleNamespace(with_groups=with_groups)
    library.scorers.near = lambda base, turn: near
    found = Refiner(library, program(), {"macs": 0.4}).run()
    assert gone(found.names) == best


@pytest.mark.parametrize("groups", [[math.nan] * 4, [1e30, 0.0, 1e30, 0.0], []])
def test_groups_that_do_not_represent_the_whole_tell_no_noise(groups: list[float]) -> None:
    """Ratios to a dense output of zero, correlations of a single sample."""
    library: Any = Interacting(5.0)
    near = SimpleNamespace(with_groups=lambda chosen: (library.divergence(chosen), np.array(groups) * len(chosen)))
    library.scorers.near = lambda base, turn: near
    assert gone(Refiner(library, program(), {"macs": 0.4}).run().names) == {"a", "c"}


def test_variants_that_fail_together_are_refused_and_nothing_is_scored_on_top() -> None:
    library: Any = Interacting(math.inf)
    library.scorers.near = lambda *_: pytest.fail("the network's own code may raise anything here")
    with pytest.raises(Refusal, match="with the variants of least score together the network fails. Lower the budget"):
        Refiner(library, program(), {"macs": 0.4}).run()


def test_alternatives_that_cannot_be_better_are_not_scored_again() -> None:
    library: Any = Interacting(0.0)
    far = {site: list(own) for site, own in program().options.items()}
    far["c"][1] = Option("gone", 500.0, {"macs": 0.2}, gone=True)
    asked: list[str] = []
    library.store.results = lambda what, names, measure, *_, **__: [
        (asked.append(names[n][-2]) if what == "alternative" else None, measure(n))[1] for n in range(len(names))
    ]
    assert gone(Refiner(library, Program(far), {"macs": 0.4}).run().names) == {"a", "b"}
    assert "c" not in asked


def test_sites_that_save_less_together_are_asked_for_more() -> None:
    library: Any = Interacting(0.0)
    measured = {0: 0.0, 1: 0.2, 2: 0.3, 3: 0.45}
    found = Refiner(library, program(), {"macs": 0.4}, lambda names, _: {"macs": measured[len(gone(names))]}).run()
    assert gone(found.names) == set(SITES)


@pytest.mark.parametrize(("reading", "taken"), [(0.3, {*SITES}), (0.361, {"a", "c"})])
def test_a_choice_that_saves_too_little_by_the_clock_gives_way_to_a_larger_one(reading: float, taken: set[str]) -> None:
    """A reading that the readings before make likely to be noise counts less."""
    library: Any = Interacting(5.0)
    read: list[set[str]] = []

    def measure(names: Mapping[str, str], clock: bool) -> dict[str, float]:
        read.extend([gone(names)] if clock else [])
        return {"latency": reading if gone(names) == {"a", "c"} else 0.2 * len(gone(names))} if clock else {}

    dense = Option(DENSE, 0.0, {"latency": 0.0})
    timed = Program({s: [dense, Option("gone", ALONE[s], {"latency": 0.2}, gone=True)] for s in SITES})
    found = Refiner(library, timed, {"latency": 0.38}, measure).run()
    assert read[:2] == [{"a", "b"}, {"a", "c"}]
    assert gone(found.names) == taken


@pytest.mark.parametrize(("share", "parts"), [(0.2, [0.2]), (0.5, [0.25, 0.375, 0.5])])
def test_more_than_a_quarter_is_chosen_step_by_step(share: float, parts: list[float]) -> None:
    library: Any = Interacting(0.0)
    asked: list[float] = []

    def results(what: str, names: Any, measure: Any, *_: Any, **__: Any) -> list[Any]:
        asked.extend([ast.literal_eval(names[0][0])["macs"]] if what == "solution" else [])  # a mapping, as text
        return [measure(n) for n in range(len(names))]

    library.store.results = results
    Refiner(library, program(), {"macs": share}).run()
    assert list(dict.fromkeys(asked)) == pytest.approx(parts)


@pytest.mark.parametrize(("together", "rounds"), [(5.0, 2), (0.11, 1)])
def test_a_round_that_gains_little_is_the_last(together: float, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites a and c are better than a and b by much, or by less than a hundredth."""
    library: Any = Interacting(together)
    better, asked = Refiner.better, list[set[str]]()

    def watched(refiner: Refiner, best: State, *slacks: Any) -> State | None:
        asked.append(gone(best.names))
        return better(refiner, best, *slacks)

    monkeypatch.setattr(Refiner, "better", watched)
    assert gone(Refiner(library, program(0.1), {"macs": 0.2}).run().names) == {"a", "c"}
    assert len(asked) == rounds


def test_a_choice_for_more_begins_where_the_last_one_ended() -> None:
    library: Any = Interacting(5.0)
    first = Refiner(library, program(), {"macs": 0.2}).run()
    more = Refiner(library, program(), {"macs": 0.4}).run(1, (first, {"macs": 0.2}))
    assert gone(first.names) < gone(more.names)
    assert len(gone(more.names)) == 2


@pytest.mark.parametrize(("saved", "sites"), [(0.2, 1), (0.1, 2)])
def test_a_choice_made_again_begins_with_the_latency_measured_at_the_end(saved: float, sites: int) -> None:
    """Where one site saves half of its share, two sites are needed; no rough clock is read any more."""
    library: Any = Interacting(0.0)
    dense = Option(DENSE, 0.0, {"latency": 0.0})
    options = {site: [dense, Option("gone", ALONE[site], {"latency": 0.2}, gone=True)] for site in SITES}
    first = State(library, {"a": "gone", "b": DENSE, "c": DENSE})

    def measure(_: Mapping[str, str], clock: bool) -> dict[str, float]:
        assert not clock
        return {}

    found = Refiner(library, Program(options), {"latency": 0.2}, measure).run(1, (first, {"latency": saved}))
    assert len(gone(found.names)) == sites


def test_all_that_can_go_goes_where_the_clock_says_too_little() -> None:
    """Three sites have to save half, and save 0.3 of their 0.6: no solution is looked for again and again."""
    library: Any = Interacting(0.0)
    dense = Option(DENSE, 0.0, {"latency": 0.0})
    options = {site: [dense, Option("gone", ALONE[site], {"latency": 0.2}, gone=True)] for site in SITES}
    solved, results = list[str](), library.store.results

    def noted(what: str, *asked: Any, **how: Any) -> Any:
        solved.append(what)
        return results(what, *asked, **how)

    library.store.results = noted
    found = Refiner(
        library, Program(options), {"latency": 0.5}, lambda names, clock: {"latency": 0.1 * len(gone(names))}
    )
    assert gone(found.run().names) == set(SITES)
    assert solved.count("solution") < 100, "each look at nearby choices ends where its solution stays the same"


def test_more_than_can_go_is_refused() -> None:
    library: Any = Interacting(0.0)
    with pytest.raises(ValueError, match=r"70.0% of the macs, but at most 60.0% of the macs can go\. Lower the budget"):
        Refiner(library, program(), {"macs": 0.7}).run()
