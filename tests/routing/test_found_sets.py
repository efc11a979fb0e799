"""A search for omission sets that is interrupted goes on behind the last set that it found, and finds the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.routed_language import encoding, questions
from cases.models.tiny import tiny_llama

from prunerecover import Plan
from prunerecover.routing import omission_sets
from prunerecover.routing.omission_sets import plan_omission_sets

TASKS = {"first": questions(6, first=5, seed=1), "second": questions(6, first=30, seed=2)}
SEARCHES = 5  # one per task and loss, and one for the static set


class Searches:
    """Searches as they are, counted.

    Attributes:
        made: How many.
        until: The last one before an interrupt, if there is to be one.
    """

    def __init__(self) -> None:
        self.made, self.until, self._search = 0, SEARCHES, omission_sets.plan_depth

    def __call__(self, *arguments: Any, **named: Any) -> Plan:
        if self.made == self.until:
            raise KeyboardInterrupt
        self.made += 1
        return self._search(*arguments, **named)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    counted = Searches()
    monkeypatch.setattr(omission_sets, "plan_depth", counted)
    return counted


@pytest.mark.slow
def test_an_interrupted_search_goes_on_and_finds_the_same(tmp_path: Path, searches: Searches) -> None:
    model, store = tiny_llama(num_hidden_layers=5), tmp_path / "found" / "sets.jsonl"
    whole = plan_omission_sets(model, TASKS, encoding(), 2)
    assert searches.made == SEARCHES
    searches.made, searches.until = 0, 3
    with pytest.raises(KeyboardInterrupt):
        plan_omission_sets(model, TASKS, encoding(), 2, store=store)
    with store.open("a") as file:
        file.write('{"key": "cut off by a ki')
    searches.made, searches.until = 0, SEARCHES
    assert plan_omission_sets(model, TASKS, encoding(), 2, store=store) == whole
    assert searches.made == SEARCHES - 3
    assert plan_omission_sets(model, TASKS, encoding(), 2, store=store) == whole
    assert searches.made == SEARCHES - 3


@pytest.mark.slow
def test_other_settings_questions_and_weights_are_searched_anew(tmp_path: Path, searches: Searches) -> None:
    model, only, store = tiny_llama(num_hidden_layers=5), {"first": TASKS["first"]}, tmp_path / "sets.jsonl"

    def made(tasks: dict[str, Any], **changes: Any) -> int:
        searches.made = 0
        plan_omission_sets(model, tasks, encoding(), 1, losses=("likelihood",), store=store, **changes)
        return searches.made

    assert made(only) == 1  # the static set and the task's own are judged on the same questions
    assert made(only) == 0
    assert made(only, search="exact") == 1
    assert made(only, shared_prefix=1) == 1
    assert made({"first": TASKS["second"]}) == 1
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(2)
    assert made(only) == 1


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "sets.jsonl"
    store.write_text('{"plan": 3}\n')
    with pytest.raises(
        ValueError, match=r"Expected one search per line in .*sets\.jsonl, but got .*plan.* Move the fi"
    ):
        plan_omission_sets(tiny_llama(), TASKS, encoding(), 1, store=store)
