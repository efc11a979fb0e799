"""Records of plans as in files: evidence, edits that bypass and patch; the table of units' kinds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.depth.architectures import ARCHITECTURES
from cases.depth.removal import outputs, removals_of
from cases.old_files import PLAN_FILES
from cases.paths import ROOT
from torch import nn

from prunerecover import Plan, apply_plan
from prunerecover.callbacks.prune_report import planning_cost
from prunerecover.checkpoint.ledger_record import SurgeryEvent
from prunerecover.model.copies import deep_copy
from prunerecover.plan import evidence as e
from prunerecover.plan.edit_parts import StandIn
from prunerecover.plan.edits import Bypass
from prunerecover.plan.kinds import KINDS, TRAITS
from prunerecover.surgery.provenance import plan_for

RECORDS = (e.BudgetEvidence, e.DepthEvidence, e.WidthEvidence)
RECORDS += (e.ToleranceEvidence, e.BoundaryEvidence, e.SearchEvidence)
OLD = ROOT / "tests" / "checkpoint" / "old_files"


@pytest.mark.parametrize("name", PLAN_FILES)
def test_records_hold_all_entries_of_a_file(name: str) -> None:
    plan = Plan.load(OLD / name)
    written: dict[str, Any] = {}
    for record in RECORDS:
        written |= record.of(plan.evidence).to_dict()
    assert written == plan.evidence


def test_a_plan_without_evidence_says_nothing() -> None:
    for record in RECORDS:
        assert record.of({}) == record()
        assert record.of({}).to_dict() == {}


def test_what_went_of_a_single_cost_is_read_from_earlier_plans() -> None:
    earlier = {"cost": "macs", "live": 0.2, "merged": 0.3, "asked": 0.3, "smallest_unit": 0.1}
    assert e.BudgetEvidence.of({"removed_share": earlier}).removed_share["macs"].merged == 0.3
    (split,) = e.SplitEvidence.of({"splits": [{"depth": 0.5, "divergence": 0.1, "saved": 0.4}]}).splits
    assert split.saved == 0.4


@pytest.mark.parametrize("kept", [None, [1], {"fc1": 3}, {"fc1": [1, 2, 3]}])
def test_entries_of_another_form_count_as_not_there(kept: object) -> None:
    assert e.WidthEvidence.of({"kept": kept, "kinds": {"fc1": "neuron"}}) == e.WidthEvidence(kinds={"fc1": "neuron"})
    assert Plan(evidence={"kept": kept, "importance": kept, "search": kept}).kept_groups == ()


def test_a_report_adds_up_what_planning_took_before_the_fit_and_in_it() -> None:
    plan = Plan(evidence=e.SearchEvidence(search=e.PlanningCost(seconds=60.0)).to_dict())
    events = [
        SurgeryEvent(by="a", target=target, epoch=0, units=(), seconds=seconds)
        for target, seconds in (("net", 1.5), ("net", None), ("other", 4.0))
    ]
    assert planning_cost(plan, events, "net") == e.PlanningCost(seconds=61.5)
    assert planning_cost(Plan(), events, "net") == e.PlanningCost(seconds=1.5)
    assert planning_cost(Plan(), [], "net") is None


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_kind_holds_is_of_its_dimension_and_sorted_after_it(kind: str) -> None:
    for inside in TRAITS[kind].holds:
        assert TRAITS[inside].dimension == TRAITS[kind].dimension
        assert len(TRAITS[kind].holds) > len(TRAITS[inside].holds)


BYPASS = Bypass(unit="0", kind="layer", modules={"0": StandIn(), "1": StandIn(leaves="zero")})


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))


def saved(tmp_path: Path, **changes: Any) -> Path:
    """Return a plan file with an edited edit."""
    path = tmp_path / "plan.json"
    plan_for(net(), [BYPASS], method="test").save(path)
    data = json.loads(path.read_text())
    data["edits"][0] |= changes
    path.write_text(json.dumps(data))
    return path


POOL = {"leaves": "pool"}
EDITED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown stand-in": ({"modules": {"0": {"leaves": "nothing"}}}, "Expected a valid plan, but .* wrong: "),
    "an unknown kind": ({"kind": "channel"}, "Expected a valid plan, but .* wrong: "),
    "fewer than no values returned": ({"modules": {"0": {"returns": -1}}}, "Expected a valid plan, but .* wrong: "),
    "too many values returned": ({"modules": {"0": {"returns": 10**9}}}, "Expected a valid plan, but .* wrong: "),
    "a pooling without a window": ({"modules": {"0": POOL}}, "Expected the window of a pooling"),
    "of four dimensions": ({"modules": {"0": {**POOL, "window": [[1] * 4] * 3}}}, "Expected the window of a pooling"),
    "a module that is not there": ({"modules": {"9.b": {}}}, "Expected a module at '9.b'"),
    "the network itself": ({"modules": {"": {}}}, "Expected the path of a module inside the network"),
    "other modules": ({"modules": {"2": {}}}, "Expected the plan to leave the model it describes"),
}


@pytest.mark.parametrize("case", EDITED)
def test_edited_file_is_explained_and_the_model_is_left_alone(case: str, tmp_path: Path) -> None:
    changes, message = EDITED[case]
    model = net()
    before = [(path, id(module)) for path, module in model.named_modules()]
    with pytest.raises(ValueError, match=message):
        apply_plan(model, Plan.load(saved(tmp_path, **changes)))
    assert [(path, id(module)) for path, module in model.named_modules()] == before


def spoiled(data: Any, drawn: random.Random) -> Any:
    """Change a random entry of a JSON value."""
    if isinstance(data, dict) and data:
        key = drawn.choice(sorted(data))
        if drawn.random() < 0.2:
            return {name: value for name, value in data.items() if name != key}
        return data | {key: spoiled(data[key], drawn)}
    if isinstance(data, list) and data:
        place = drawn.randrange(len(data))
        return [*data[:place], spoiled(data[place], drawn), *data[place + 1 :]]
    return drawn.choice([None, -1, 0, 10**12, "", "0", "layer1.0.conv1", [], {}, True, 0.5])


@pytest.fixture(scope="module")
def whole() -> tuple[nn.Module, Any, dict[str, Any]]:
    """Return a network, a batch, and the data of a plan."""
    model, batch = ARCHITECTURES["detector"]()
    removals = removals_of(model, batch, ("layer",))
    plan = plan_for(model, removals.edits(removals.units[:3]), method="test")
    return model, batch, json.loads(json.dumps(plan.to_dict()))


@pytest.mark.parametrize("seed", range(4))
def test_spoiled_plan_is_refused_or_does_what_it_says(
    seed: int, whole: tuple[nn.Module, Any, dict[str, Any]], tmp_path: Path
) -> None:
    model, batch, data = whole
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data | {"edits": spoiled(data["edits"], random.Random(seed))}))
    target = deep_copy(model).eval()
    with torch.no_grad():
        before = outputs(target, batch)[0]
    refusal = None
    try:
        apply_plan(target, Plan.load(path))
    except (ValueError, TypeError) as error:
        refusal = str(error)
    with torch.no_grad():
        kept = torch.equal(outputs(target, batch)[0], before)
    assert refusal is None or (kept and refusal.startswith("Expected"))
