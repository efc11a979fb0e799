"""Two ranks (CPU, gloo): the same decision, and the same weights after every step before and after surgery."""

from __future__ import annotations

import pytest
from cases.fits.ranks import two_ranks

pytestmark = pytest.mark.slow  # starting two ranks takes longest
SCENARIOS = (
    *("progressive", "reducers", "manual", "averaged", "resumed", "narrowed", "depth_and_width", "adapted"),
    *("local_data", "rated", "sharded", "until_the_metric_falls"),
)


def agreed(result: dict, surgeries: list[int]) -> None:
    assert result["world"] == 2
    assert result["agreed"] == result["steps"] > 0
    assert [event["epoch"] for event in result["events"]] == surgeries


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict:
    """Return the results of all scenarios, from a single pair of processes."""
    return two_ranks(tmp_path_factory.mktemp("ranks"), *SCENARIOS)


def test_progressive_with_distillation_and_accumulation(results):
    result = results["progressive"]
    agreed(result, [1, 2])
    assert result["steps"] == 3 * 3  # 48 samples, 2 ranks, batches of 8


def test_own_logs_are_of_both_ranks_without_a_warning(results):
    result = results["progressive"]
    assert result["unsynced"] == results["rated"]["whole"]["unsynced"] == []
    assert result["removed"] == sum(len(event["units"]) for event in result["events"]) > 1


def test_a_step_is_taken_back_on_both_ranks(results):
    whole, part = results["until_the_metric_falls"]["whole"], results["until_the_metric_falls"]["part"]
    for result in (whole, part):
        agreed(result, [1])
        assert result["judged"] == [[1, 2.0, True], [2, 1.0, False]]
        assert result["digest"] == whole["digest"]


@pytest.mark.parametrize(
    "run",
    [
        *(("reducers", reducer) for reducer in ("find_unused", "static", "bucket_view")),
        *(("manual",), ("averaged",), ("depth_and_width",), ("narrowed", "width_prune")),
    ],
    ids=" ".join,
)
def test_one_surgery_on_both_ranks(results, run):
    """Every reducer; manual optimization with features; averaged copies."""
    for name in run:
        results = results[name]
    agreed(results, [1])


def test_reducers_do_not_change_the_result(results):
    assert len({result["digest"] for result in results["reducers"].values()}) == 1


@pytest.mark.parametrize("run", ["resumed", "adapted", "rated"])
def test_resumed_equals_uninterrupted(results, run):
    """A stale reducer would wait for gradients of frozen weights, and leave the adapters out."""
    whole, parts = results[run]["whole"], results[run]["parts"]
    for result in (whole, *parts):
        agreed(result, [1])
        assert result["digest"] == whole["digest"]


def test_each_rank_keeps_the_answers_to_its_own_samples(results):
    """An epoch gives each rank half of the 48 samples; the next shuffle distributes them differently."""
    answers = results["resumed"]["answers"]
    assert answers.keys() == {"0", "1"}
    assert all(24 < found < 48 for found in answers.values())


@pytest.mark.parametrize("run", ["plain", "bucket_view", "resumed", "residual"])
def test_narrowed(results, run):
    """A stale reducer would sum gradients of other shapes, or of the wrong entries."""
    agreed(results["narrowed"][run], [1, 2])


def test_narrowed_runs_end_equal_however_they_are_reduced_or_resumed(results):
    runs = ("plain", "bucket_view", "resumed")
    assert len({results["narrowed"][run]["digest"] for run in runs}) == 1


def test_one_decision_for_ranks_with_different_data(results):
    result = results["local_data"]
    agreed(result, [1])
    assert result["decided"][0] != result["decided"][1]
    assert result["plans"][0] == result["plans"][1]


def test_sharded_with_a_plan_known_beforehand(results):
    """FSDP2: the pruned structure exists before the model is sharded, and a file resumes into it."""
    whole, again = results["sharded"]["whole"], results["sharded"]["again"]
    assert [event["epoch"] for event in whole["events"]] == [event["epoch"] for event in again["events"]] == [0]
    assert whole["digest"] == again["digest"]
