"""Objects in a user's hands show themselves in a few lines; tables are in Markdown."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from prunerecover import (
    Budget,
    DepthPrune,
    DistillRecover,
    LoRARecover,
    Plan,
    PlanSet,
    Prune,
    PruneReport,
    PruneSchedule,
    RoutedLoRARecover,
    Sensitivity,
    WidthPrune,
    compare,
    find_groups,
    find_units,
    plan_depth,
    plan_width,
    trace_graph,
)
from prunerecover.cost.macs import count_macs
from prunerecover.display.markdown import table
from prunerecover.display.summary import MOST, Summarised
from prunerecover.importance.saved_scores import SavedScores
from prunerecover.plan.edits import Narrow, Remove
from prunerecover.sensitivity_table.rows import UnitRow

X, Y = torch.randn(8, 3, 12, 12), torch.arange(8) % 5


@cache
def network(layers: int = 8) -> nn.Module:
    torch.manual_seed(0)
    middle = [part for _ in range(layers) for part in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())]
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), *middle, nn.Flatten(), nn.Linear(1600, 5)).eval()


@cache
def in_width() -> Plan:
    return plan_width(network(), Budget(macs=0.3), batches=[(X, Y)], importance="magnitude", replace="zero")


@cache
def in_depth() -> Plan:
    return plan_depth(network(), Budget(params=0.03), batches=[X], search="one_shot")


def long_plan() -> Plan:
    narrow = [Narrow(unit=f"conv{i}", kind="channel", of=64, keep=(0,), group=()) for i in range(200)]
    return Plan(edits=(*narrow, *(Remove(unit=f"blocks.{i}.attn", kind="attention") for i in range(50))))


def sensitive() -> Sensitivity:
    rows = tuple(UnitRow(f"blocks.{i}", "block", 0.1, 0.1, float(i)) for i in range(40))
    return Sensitivity(rows, (), SavedScores("", {}), {})


SHOWN: dict[str, Callable[[], Summarised]] = {
    "plan in width": in_width,
    "plan in depth": in_depth,
    "long plan": long_plan,
    "plan of nothing": Plan,
    "sets": lambda: PlanSet(names=("a", "b"), plans=(Plan(), Plan(edits=(Remove(unit="layers.3", kind="block"),)))),
    "report": lambda: compare(network(), network(), X, batches=[(X, Y)], plan=in_width(), pairs=2),
    "graph": lambda: trace_graph(network(), X),
    "groups": lambda: find_groups(network(), X),
    "list of groups": lambda: find_groups(network(), X).groups,  # type: ignore[dict-item, return-value]
    "group": lambda: find_groups(network(), X).groups[0],
    "units": lambda: find_units(network(), X, "layer"),
    "sensitivity": sensitive,
}


@pytest.mark.parametrize("name", SHOWN)
def test_at_most_twelve_lines_are_printed_and_a_notebook_has_a_table(name: str) -> None:
    shown = SHOWN[name]()
    lines = str(shown).splitlines()
    assert 1 <= len(lines) <= MOST == 12
    assert max(map(len, lines)) < 220
    assert " object at 0x" not in str(shown)
    page = shown._repr_html_()
    others = sum(line.startswith(("… and", "Refused:")) for line in lines)
    assert page.count("<tr>") == page.count("</tr>") == len(lines) - others - 1
    assert lines[0] in page


def test_a_plan_says_what_goes_of_how_many_and_which_share_was_got() -> None:
    layers = len(find_units(network(), X, "layer"))
    channels = sum(group.size for group in in_width().kept_groups)
    dense = {"MACs": count_macs(network(), X[:1]), "parameters": sum(p.numel() for p in network().parameters())}
    for plan, kind, size, cost in (
        (in_width(), "channel", channels, "MACs"),
        (in_depth(), "layer", layers, "parameters"),
    ):
        title, _, units, share, *_ = str(plan).splitlines()
        assert title.startswith(f"Plan by {plan.made_by.method}, which leaves {plan.result.params:,} parameters")
        names = plan.removed[kind]
        assert units.split()[:3] == [kind, str(len(names)), str(size)]
        assert units.split()[3].strip(",") == names[0].partition("[")[0]
        left = {"MACs": plan.result.macs, "parameters": plan.result.params}[cost]
        (asked,) = plan.made_by.arguments["budget"].values()
        assert share.split() == [cost, f"{1 - left / dense[cost]:.1%}", "asked", "for:", f"{asked:.1%}"]
    assert float(str(in_depth()).splitlines()[-1].split()[1]) == pytest.approx(
        list(in_depth().evidence["divergence"].values())[-1], rel=0.01
    )


def test_a_plan_of_several_claims_no_share_of_one_of_them() -> None:
    first, second = in_width(), in_depth()
    both = first + second.model_copy(
        update={"source": first.source.model_copy(update={"tensors": first.result.tensors})}
    )
    assert "asked for" in str(first)
    assert "asked for" in str(second)
    assert "asked for" not in str(both)
    assert not {"removed_share", "divergence"} & both.evidence.keys()


GIVEN = {
    "Budget(macs=0.2)": Budget(macs=0.2),
    "Budget(remove={'head': 3})": Budget(remove={"head": 3}),
    "PruneSchedule(start=1, every=2)": PruneSchedule(start=1, every=2),
    "Prune(budget=Budget(macs=0.3), schedule=PruneSchedule(start=10))": Prune(Budget(macs=0.3), schedule=10),
    "DepthPrune(budget=Budget(remove={'attention': 2}), ignore=('a*',))": DepthPrune(
        remove={"attention": 2}, ignore=["a*"]
    ),
    "WidthPrune(budget=Budget(params=0.2), reconstruct=False, round_to=8)": WidthPrune(
        Budget(params=0.2), reconstruct=False, round_to=8
    ),
    "WidthPrune(plan='plan.json')": WidthPrune(plan=Path("plan.json")),
    "LoRARecover(rank=8, alpha=16.0)": LoRARecover(rank=8),
    "DistillRecover(features=True)": DistillRecover(features=True),
    "PruneReport(samples=4, pairs=0)": PruneReport(samples=4, pairs=0),
    "RoutedLoRARecover(sets='sets.json', alpha=32.0)": RoutedLoRARecover("sets.json"),
}


@pytest.mark.parametrize("text", GIVEN)
def test_repr_is_the_call_without_what_was_not_said(text: str) -> None:
    given: Any = GIVEN[text]
    assert repr(given) == text
    assert repr(eval(text)) == text
    assert repr(pickle.loads(pickle.dumps(given))) == text


def test_what_has_no_short_text_is_named_by_its_type() -> None:
    teacher = DistillRecover(teacher=network())
    assert repr(teacher) == "DistillRecover(teacher=<Sequential>)"
    assert repr(Prune(plan=long_plan())) == "Prune(plan=<Plan>)"
    assert repr(Prune(Budget(macs=0.3), loss=sensitive)) == "Prune(budget=Budget(macs=0.3), loss=sensitive)"  # type: ignore[arg-type]


def test_a_table_has_a_line_per_row() -> None:
    assert table(("a", "b"), [("1", ""), ("2", "`x`")]) == "| a | b |\n|---|---|\n| 1 |  |\n| 2 | `x` |"


@pytest.mark.parametrize("row", [("1",), ("1", "2", "3")])
def test_a_row_of_another_length_is_refused(row: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f"Expected 2 cells in every row of the table, but got {len(row)}"):
        table(("a", "b"), [row])
