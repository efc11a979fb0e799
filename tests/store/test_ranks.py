"""Ranks share the work of a plan, with the same result as a single process, and none waits for a failed rank."""

from __future__ import annotations

from typing import Any

import pytest
from cases.fits.ranks import two_ranks

pytestmark = pytest.mark.slow
SCENARIOS = ("shared", "stored", "clocked", "own_data", "tables", "failing")
PLANNED = (("shared", "vit"), ("shared", "normed"), ("stored", "again"))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return two_ranks(tmp_path_factory.mktemp("ranks"), *SCENARIOS, script="fits/planning_ranks.py")


@pytest.mark.parametrize(("scenario", "name"), PLANNED)
def test_all_have_the_plan_of_one_process(results: Any, scenario: str, name: str) -> None:
    ranks = results[scenario][name]
    assert len({rank["plan"] for rank in ranks} | {rank["one"] for rank in ranks}) == 1


@pytest.mark.parametrize("name", ["vit", "normed"])
def test_each_judges_a_part_of_the_choices(results: Any, name: str) -> None:
    """Both ranks judge the choices that they fit together, one for each walk but the first, which has no choice."""
    ranks = results["shared"][name]
    assert all(rank["judged"] <= 0.6 * rank["alone"] for rank in ranks)
    assert sum(rank["judged"] for rank in ranks) == ranks[0]["alone"] + ranks[0]["walks"] - 1


def test_begun_again_after_an_interrupt_of_one_they_go_on(results: Any) -> None:
    first, second = results["stored"]["said"]
    assert first == (
        "SearchEnded: Expected all ranks to search until the end, but rank 1 has left: KeyboardInterrupt. Look at its "
        "output."
    )
    assert second == "KeyboardInterrupt: "
    for again in results["stored"]["again"]:
        assert again["judged"] < 0.5 * again["alone"]


def test_the_clock_of_the_first_rank_counts(results: Any) -> None:
    assert len(set(results["clocked"])) == 1


def test_ranks_with_samples_of_their_own_plan_alone(results: Any) -> None:
    ranks = results["own_data"]
    assert ranks[0]["plan"] != ranks[1]["plan"]
    for rank in ranks:
        assert rank["plan"] == rank["one"]
        assert rank["judged"] == rank["alone"]


def test_the_frontier_is_that_of_one_process(results: Any) -> None:
    for rank in results["tables"]:
        assert rank["points"] == rank["one"] == results["tables"][0]["one"]


@pytest.mark.parametrize("where", ["divergence", "rebase", "walk"])
def test_what_one_fails_with_ends_the_planning_of_all(results: Any, where: str) -> None:
    first, second = results["failing"][where]
    assert second == "OutOfMemoryError: no memory is left"
    if where == "walk":  # between two results
        assert first.startswith("SearchEnded: Expected all ranks to search until the end, but rank 1 has left: OutOf")
    else:
        assert first == "OutOfMemoryError: no memory is left This was on rank 1."


def test_a_failure_inside_a_result_of_all_is_told_to_all(results: Any) -> None:
    assert results["failing"]["inside"] == [
        "SearchEnded: Expected all ranks to search until the end, but rank 1 has left: OutOfMemoryError: no memory is "
        "left. Look at its output.",
        "OutOfMemoryError: no memory is left",
    ]


def test_ranks_that_ask_for_other_things_are_told(results: Any) -> None:
    for told in results["failing"]["lost"]:
        assert told.startswith("SearchEnded: Expected all ranks to ask for the same results, but they ask for others.")
