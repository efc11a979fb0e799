"""A search for omission sets that is interrupted goes on behind its last result, and finds the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases.depth.interrupted import Interrupts
from cases.models.routed_language import encoding, questions
from cases.models.tiny import tiny_llama

from prunerecover.routing.omission_sets import plan_omission_sets

TASKS = {"first": questions(6, first=5, seed=1), "second": questions(6, first=30, seed=2)}


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch) -> Interrupts:
    return Interrupts(monkeypatch)


@pytest.mark.slow
def test_an_interrupted_search_goes_on_and_finds_the_same(tmp_path: Path, interrupts: Interrupts) -> None:
    model, store = tiny_llama(num_hidden_layers=5), tmp_path / "found" / "sets"
    interrupts.begin()
    whole = plan_omission_sets(model, TASKS, encoding(), 2, store=tmp_path / "whole")
    results = interrupts.computed
    interrupts.begin(results // 2)
    with pytest.raises(KeyboardInterrupt):
        plan_omission_sets(model, TASKS, encoding(), 2, store=store)
    interrupts.begin()
    assert plan_omission_sets(model, TASKS, encoding(), 2, store=store) == whole
    assert 0 < interrupts.computed < results
    interrupts.begin()
    assert plan_omission_sets(model, TASKS, encoding(), 2, store=store) == whole
    assert interrupts.computed == 0


@pytest.mark.slow
def test_other_settings_and_questions_are_searched_anew(tmp_path: Path, interrupts: Interrupts) -> None:
    model, only, store = tiny_llama(num_hidden_layers=5), {"first": TASKS["first"]}, tmp_path / "sets"

    def computed(tasks: dict[str, Any], **changes: Any) -> int:
        interrupts.begin()
        plan_omission_sets(model, tasks, encoding(), 1, losses=("likelihood",), store=store, **changes)
        return interrupts.computed

    assert computed(only) > 0
    assert computed(only) == 0
    assert computed(only, search="exact") > 0
    assert computed(only, shared_prefix=1) > 0
    assert computed({"first": TASKS["second"]}) > 0
