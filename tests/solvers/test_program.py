"""The integer program against brute force over all choices of small random programs."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from prunerecover.solvers.program import OVER, Chosen, Option, Program

SEEDS = range(12)


def program(seed: int, costs: tuple[str, ...] = ("macs",), *, alike: bool = False) -> Program:
    """Draw options of four sites, of which the second lies inside the first."""
    drawn = random.Random(seed)
    options = {}
    for site in "abcd":
        own = [Option("dense", 0.0, dict.fromkeys(costs, 0.0))]
        for size in range(1, 4):
            saved = {cost: round(0.08 * size * drawn.uniform(0.5, 1), 3) for cost in costs}
            own.append(Option(f"size {size}", round(drawn.random() * size, 3), saved))
        own.append(Option("gone", round(3 * drawn.random(), 3), dict.fromkeys(costs, 0.25), gone=True))
        options[site] = own
    return Program(options, [("a", "b")], [["b", "c"]] if alike else ())


def every_choice(program: Program) -> list[Chosen]:
    names = [[option.name for option in own] for own in program.options.values()]
    return [dict(zip(program.options, chosen, strict=True)) for chosen in itertools.product(*names)]


def allowed(program: Program, chosen: Chosen) -> bool:
    options = {site: next(o for o in own if o.name == chosen[site]) for site, own in program.options.items()}
    apart = all(chosen[outer] == "dense" or chosen[inner] == "dense" for outer, inner in program.holds)
    sizes = [{options[site].name for site in sites if not options[site].gone} for sites in program.alike]
    return apart and all(len(one) <= 1 for one in sizes)


def score(program: Program, chosen: Chosen) -> float:
    return sum(o.score for site, own in program.options.items() for o in own if o.name == chosen[site])


def least(program: Program, need: dict[str, float], near: tuple[Chosen, int] | None = None) -> float:
    """Return the least score of a choice that saves enough, and little more of a cost, or as little more as can be."""
    first, found = next(iter(need)), list[tuple[float, float, float, float]]()
    for chosen in every_choice(program):
        saved = [program.saved(chosen, cost) for cost in need]
        over = [one - share for one, share in zip(saved, need.values(), strict=True)]
        changes = 0 if near is None else sum(near[0][site] != name for site, name in chosen.items())
        if allowed(program, chosen) and min(over) >= -1e-9 and (near is None or changes <= near[1]):
            found.append((min(over), sum(saved), program.saved(chosen, first), score(program, chosen)))
    within = [one for over, _, _, one in found if over <= OVER + 1e-9]
    if within or not found:
        return min(within, default=math.inf)
    nearest = min(found, key=lambda one: one[1])[2]
    return min(one for _, _, saved, one in found if saved <= nearest + OVER + 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("alike", [False, True])
def test_no_choice_that_saves_as_much_costs_less(seed: int, alike: bool) -> None:
    found = program(seed, alike=alike)
    need = {"macs": 0.1 + 0.04 * seed}
    chosen = found.solve(need)
    assert allowed(found, chosen)
    assert found.saved(chosen, "macs") >= need["macs"] - 1e-6
    assert score(found, chosen) == pytest.approx(least(found, need), rel=2e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_several_costs_are_met_at_once(seed: int) -> None:
    found, need = program(seed, ("macs", "params")), {"macs": 0.3, "params": 0.2}
    chosen = found.solve(need)
    assert all(found.saved(chosen, cost) >= share - 1e-6 for cost, share in need.items())
    assert score(found, chosen) == pytest.approx(least(found, need), rel=2e-3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("changes", [1, 2])
def test_near_another_choice_few_sites_change(seed: int, changes: int) -> None:
    found, need = program(seed), {"macs": 0.25}
    start = {"a": "dense", "b": "size 2", "c": "size 2", "d": "size 2"}
    chosen = found.solve(need, (start, changes))
    wanted = least(found, need, (start, changes))
    if math.isinf(wanted):
        assert chosen == start, "as it was, where no choice near it saves enough"
    else:
        assert sum(start[site] != name for site, name in chosen.items()) <= changes
        assert score(found, chosen) == pytest.approx(wanted, rel=2e-3)


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_the_most_that_can_go_is_that_of_all_choices(seed: int) -> None:
    found = program(seed)
    most = max(found.saved(chosen, "macs") for chosen in every_choice(found) if allowed(found, chosen))
    assert found.most("macs") == pytest.approx(most)


@pytest.mark.parametrize("scale", [1.0, 1e-8, 1e6])
def test_scores_of_any_size_are_told_apart(scale: float) -> None:
    """A network whose output hardly changes has scores that a solver's own tolerance would take for equal."""
    own = [(0.0, 0.0), (1.0, 0.2), (2.0, 0.2)]
    options = [Option(str(n), score * scale, {"macs": saved}) for n, (score, saved) in enumerate(own)]
    found = Program({"a": options, "b": options[:1] + options[:0:-1]})
    assert found.solve({"macs": 0.4}) == {"a": "1", "b": "1"}
    assert found.solve({"macs": 0.2}) in ({"a": "1", "b": "0"}, {"a": "0", "b": "1"})


def test_options_without_a_finite_score_are_not_taken() -> None:
    options = [Option("dense", 0.0, {"macs": 0.0}), Option("half", 9.0, {"macs": 0.5})]
    found = Program({"a": [*options, Option("broken", math.inf, {"macs": 0.6})]})
    assert found.solve({"macs": 0.4}) == {"a": "half"}


def test_as_little_beyond_the_need_as_options_allow() -> None:
    """Where much more goes at no cost, what is asked for goes all the same."""
    own = [Option(f"{share:.0%}", 0.0, {"macs": share}) for share in (0.0, 0.1, 0.3, 0.6)]
    found = Program({"a": own})
    assert found.solve({"macs": 0.3}) == {"a": "30%"}
    assert found.solve({"macs": 0.4}) == {"a": "60%"}, "units are as large as they are"


def test_too_much_is_refused() -> None:
    found = Program({"a": [Option("dense", 0.0, {"macs": 0.0}), Option("half", 1.0, {"macs": 0.5})]})
    with pytest.raises(ValueError, match=r"a budget that the variants of all sites can meet, 60.0% of the macs, .*at"):
        found.solve({"macs": 0.6})
    with pytest.raises(ValueError, match=r"at most 50.0% of the macs can go. Lower the budget, or ignore fewer"):
        found.solve({"macs": 0.6})


def test_one_site_of_a_list_is_not_gone() -> None:
    dense = Option("dense", 0.0, {"macs": 0.0})
    options = {
        site: [dense, Option("gone", score, {"macs": 0.2}, gone=True)]
        for site, score in {"a": 1, "b": 2, "c": 9}.items()
    }
    together = Program(options, lists=(("a", "b"),)).solve({"macs": 0.4})
    assert together == {"a": "gone", "b": "dense", "c": "gone"}
    assert Program(options).solve({"macs": 0.4}) == {"a": "gone", "b": "gone", "c": "dense"}


def test_of_whole_sites_nothing_gets_smaller() -> None:
    options = [
        Option("dense", 0.0, {"macs": 0.0}),
        Option("half", 1.0, {"macs": 0.2}),
        Option("zero", 3.0, {"macs": 0.4}, gone=True),
    ]
    program = Program({"a": options, "b": options[:2]})
    assert program.solve({"macs": 0.3}) == {"a": "half", "b": "half"}
    assert program.of_whole_sites().solve({"macs": 0.3}) == {"a": "zero", "b": "dense"}
