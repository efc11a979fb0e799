"""The records of a plan's evidence as files have them, and the table of the kinds of units."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, get_args

import pytest
from cases.old_files import PLAN_FILES
from cases.paths import ROOT

from prunerecover.callbacks.prune_report import search_cost
from prunerecover.checkpoint.ledger_record import SurgeryEvent
from prunerecover.plan.evidence import (
    BoundaryEvidence,
    DepthEvidence,
    PlanningCost,
    SearchEvidence,
    ToleranceEvidence,
    WidthEvidence,
)
from prunerecover.plan.kinds import KINDS, TRAITS, WIDTH_KINDS, Kind, WidthKind, holders_first
from prunerecover.plan.plan import Plan
from prunerecover.report.data import SearchCost

RECORDS = (DepthEvidence, WidthEvidence, ToleranceEvidence, BoundaryEvidence, SearchEvidence)
OLD = ROOT / "tests" / "checkpoint" / "old_files"


@pytest.mark.parametrize("name", PLAN_FILES)
def test_records_hold_all_entries_of_a_file(name: str) -> None:
    plan = Plan.load(OLD / name)
    written: dict[str, Any] = {}
    for record in RECORDS:
        written |= record.of(plan.evidence).to_dict()
    assert written == plan.evidence


@pytest.mark.parametrize("record", RECORDS)
def test_a_plan_without_evidence_says_nothing(record: Any) -> None:
    assert record.of({}) == record()
    assert record.of({}).to_dict() == {}


@pytest.mark.parametrize("kept", [None, 5, [1], {"fc1": 3}, {"fc1": [1, 2, 3]}])
def test_entries_of_another_form_count_as_not_there(kept: object) -> None:
    assert WidthEvidence.of({"kept": kept, "kinds": {"fc1": "neuron"}}) == WidthEvidence(kinds={"fc1": "neuron"})
    assert Plan(evidence={"kept": kept, "importance": kept, "search": kept}).kept_groups == ()


def test_what_is_none_is_written_and_what_was_not_set_is_not() -> None:
    assert ToleranceEvidence(tolerance=0.1, exchange=None).to_dict() == {"tolerance": 0.1, "exchange": None}


def test_a_report_states_what_the_boundary_search_took() -> None:
    """Its evidence has more entries than a report does."""
    plan = Plan.load(OLD / "boundary.json")
    cost = plan.evidence["search"]
    expected = SearchCost(**{name: cost[name] for name in ("seconds", "peak_memory_bytes", "trials")})
    assert search_cost(plan, [], "net") == expected


def test_a_report_adds_up_what_planning_took_before_the_fit_and_in_it() -> None:
    plan = Plan(evidence=SearchEvidence(search=PlanningCost(seconds=60.0)).to_dict())
    events = [
        SurgeryEvent(by="a", target=target, epoch=0, units=(), seconds=seconds)
        for target, seconds in (("net", 1.5), ("net", None), ("other", 4.0))
    ]
    assert search_cost(plan, events, "net") == SearchCost(seconds=61.5)
    assert search_cost(Plan(), events, "net") == SearchCost(seconds=1.5)
    assert search_cost(Plan(), [], "net") is None


def test_the_table_has_the_kinds_of_the_types_in_their_order() -> None:
    assert get_args(Kind) == KINDS
    assert get_args(WidthKind) == WIDTH_KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_kind_holds_is_of_its_dimension_and_sorted_after_it(kind: str) -> None:
    for inside in TRAITS[kind].holds:
        assert TRAITS[inside].dimension == TRAITS[kind].dimension
        assert holders_first(kind) < holders_first(inside)


def test_kinds_of_one_figure_can_be_told_apart() -> None:
    colors = [TRAITS[kind].color for kind in WIDTH_KINDS]
    assert all(a != b for a, b in pairwise(sorted(colors)))
