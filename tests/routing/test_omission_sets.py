"""Search for omission sets: a set per task and loss, refusals, and continuation after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases.depth.interrupted import Interrupts
from cases.models.decoders import tiny_diff_llama
from cases.models.routed_language import encoding, questions
from cases.models.tiny import tiny_llama

from prunerecover.routing.omission_sets import plan_omission_sets
from prunerecover.routing.plan_set import PlanSet

TASKS = {"first": questions(6, first=5, seed=1), "second": questions(6, first=30, seed=2)}


@pytest.mark.slow
def test_there_is_a_set_per_task_and_loss_and_a_static_one_for_every_depth() -> None:
    sets = plan_omission_sets(tiny_llama(num_hidden_layers=5), TASKS, encoding(), 2)
    assert sets.names[0] == "static"
    assert set(sets.names[1:]) <= {f"{task}/{loss}" for task in TASKS for loss in ("likelihood", "contrastive")}
    assert all(len(blocks) == 2 for blocks in sets.blocks)
    assert len(set(sets.blocks)) == len(sets.blocks)
    assert sets.shared_prefix >= 2
    shorter = [plan.first(1).removed["block"] for plan in sets.plans]
    assert all(names[0] in plan.removed["block"] for names, plan in zip(shorter, sets.plans, strict=True))


@pytest.mark.slow
def test_blocks_that_leave_an_identity_are_refused_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """DiffLlama computes with the layers' numbers, so the gap of a removed block cannot be closed."""
    monkeypatch.setattr("prunerecover.routing.omission_sets.plan_depth", None)
    with pytest.raises(ValueError, match=r"without model.layers.2 the rest of this DiffLlamaForCausalLM is no model"):
        plan_omission_sets(tiny_diff_llama(), TASKS, encoding(), 1)


def test_rows_are_no_questions() -> None:
    with pytest.raises(TypeError, match=r"Expected questions \(Question\), but one is of dict. .*question_of\(row\)"):
        plan_omission_sets(tiny_llama(), {"rows": [{"question": "w3"}]}, encoding(), 1)  # type: ignore[dict-item,list-item]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blocks": 5}, "Expected 1 to 4 blocks to remove of the 6, of which 2 stay for the router, but got 5"),
        ({"blocks": 0}, "Expected 1 to 4 blocks"),
        ({"shared_prefix": -1}, "Expected 0 to 5 blocks that stay for the router, but got -1"),
        ({"shared_prefix": 6}, "Expected 0 to 5 blocks that stay for the router, but got 6"),
        ({"objectives": ("luck",)}, r"Expected objectives among likelihood, contrastive, but got \['luck'\]"),
        ({"tasks": {}}, "Expected questions for every task, but no task has none"),
        ({"tasks": {"empty": []}}, "Expected questions for every task, but empty has none"),
    ],
)
def test_bad_input(changes: dict[str, Any], message: str) -> None:
    arguments = {"model": tiny_llama(num_hidden_layers=6), "tasks": TASKS, "encoding": encoding(), "blocks": 2}
    with pytest.raises(ValueError, match=message):
        plan_omission_sets(**{**arguments, **changes})


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch) -> Interrupts:
    return Interrupts(monkeypatch)


@pytest.mark.slow
def test_an_interrupted_search_goes_on_and_another_begins_anew(tmp_path: Path, interrupts: Interrupts) -> None:
    def planned(tasks: Any = TASKS, store: str = "found/sets", stop: int | None = None, **how: Any) -> PlanSet:
        interrupts.begin(stop)
        how = {"objectives": ("likelihood",), "store": tmp_path / store, **how}
        return plan_omission_sets(tiny_llama(num_hidden_layers=5), tasks, encoding(), 1, **how)

    whole = planned(store="whole")
    results = interrupts.computed
    with pytest.raises(KeyboardInterrupt):
        planned(stop=results // 2)
    assert planned() == whole
    assert 0 < interrupts.computed < results
    assert planned() == whole
    assert interrupts.computed == 0
    only = {"first": TASKS["first"]}
    for tasks, how in (({"first": questions(6)}, {}), (only, {"search": "exact"}), (only, {"shared_prefix": 1})):
        planned(tasks, **how)
        assert interrupts.computed > 0
