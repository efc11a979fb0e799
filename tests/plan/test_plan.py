"""Plans as data: exact round trips, composition, and files that are not plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.engine import batch_of, batches_of, build, output_of
from cases.sampling import one_in

from prunerecover.apply import apply_plan
from prunerecover.plan import edits as e
from prunerecover.plan.edit_parts import StandIn
from prunerecover.plan.groups import Setting, Slice
from prunerecover.plan.plan import Plan
from prunerecover.plan.records import MadeBy, Result, Source
from prunerecover.planning.plan_depth import plan_depth

CONSTANT = StandIn(leaves="constant", dim=1, channels=8)
EDITS = (
    e.Remove(unit="blocks.9.attn", kind="attention"),
    e.Replace(unit="blocks.2.mlp", kind="mlp", leaves="affine", tensors=("e1.weight", "e1.bias")),
    e.Merge(into="fc1", from_=("fc1", "fc2"), norm="norm", scale=None),
    e.Config(set={"ä\n": [1e-300, -(2**53), None, {"": [[], {}, True]}]}),
    e.Narrow(
        unit="blocks.1.attn",
        kind="head",
        of=9,
        keep=(0, 8),
        group=(Slice(tensor="qkv", dim=1, offsets=(0, 9), span=3, makes=False), Slice(tensor="bias", dim=0)),
        settings=(
            Setting(module="attn", attribute="scale", per_unit=4, power=-0.5),
            Setting(module="a", attribute="b"),
        ),
        tensors=("e4.proj.weight",),
        serves="next",
    ),
    e.Rewrite(unit="shortcut", in_channels=3, out_channels=5, stride=2, first=1),
    e.FreeHeads(unit="blocks.0.attn"),
    e.Bypass(unit="0", kind="layer", modules={"0": StandIn(), "1": CONSTANT}, tensors=("e7.bias",)),
    e.Patch(modules={"pool": StandIn(leaves="pool", window=((3, 3), (2, 2), (1, 1)))}),
    e.Reroute(unit="", calls=("relu:1", "add:0[1]")),
    e.Fold(unit="layers.3", into="layers.1.fc2", tensors=("e10.weight",)),
    e.Refit(unit="layers.4.fc1", tensors=("e11.weight",)),
)


def test_json_round_trip_is_exact() -> None:
    plan = Plan(
        source=Source(class_="a.B", constructor={"depth": 2}, tensors="t", weights="w", settings={"heads": "3"}),
        result=Result(tensors="u", params=2**40, macs=2**60),
        made_by=MadeBy(method="plan_depth", arguments={"remove": {"mlp": 1}}, version="1", seed=2**31),
        edits=EDITS,
        evidence={"importance": {"a": 0.1}, "search": None},
    )
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert again.edits == plan.edits
    assert json.dumps(again.to_dict()) == json.dumps(plan.to_dict())
    assert [edit.op for edit in EDITS] == [*e.OPS]


def test_json_has_the_names_that_are_written_down_and_a_setting_of_power_one_has_none() -> None:
    data = Plan(source=Source(class_="a.B"), edits=EDITS).to_dict()
    assert (data["schema"], data["source"]["class"]) == ("prunerecover.plan/1", "a.B")
    assert data["edits"][0] == {"op": "remove", "unit": "blocks.9.attn", "kind": "attention", "leaves": "zero"}
    assert data["edits"][2]["from"] == ["fc1", "fc2"]
    assert data["edits"][4]["settings"][1] == {"module": "a", "attribute": "b"}


@pytest.fixture(scope="module")
def fitted() -> Plan:
    return plan_depth(
        build("timm"), remove={"attention": 1, "activation": 2}, batches=batches_of("timm"), search="one_shot"
    )


def test_saved_equals_reloaded(fitted: Plan, tmp_path: Path) -> None:
    path = fitted.save(tmp_path / "deep" / "plan.json")
    assert path.with_suffix(".safetensors").is_file()
    again = Plan.load(path)
    assert again == fitted
    a, b = build("timm"), build("timm")
    apply_plan(a, fitted)
    apply_plan(b, again)
    assert torch.equal(output_of(a, batch_of("timm")), output_of(b, batch_of("timm")))


@pytest.mark.parametrize("names", [("plan_0.3", "plan_0.5"), ("a.json", "a.txt"), ("a.safetensors", "b")])
def test_every_name_has_a_sidecar_of_its_own(names: tuple[str, str], fitted: Plan, tmp_path: Path) -> None:
    other = fitted.with_tensors({key: value + 1 for key, value in fitted.tensors.items()})
    paths = [plan.save(tmp_path / name) for plan, name in zip((fitted, other), names, strict=True)]
    assert [Plan.load(path) for path in paths] == [fitted, other]


def test_structure_loads_without_the_sidecar_and_surgery_refuses(fitted: Plan, tmp_path: Path) -> None:
    path = fitted.save(tmp_path / "plan.json")
    path.with_suffix(".safetensors").unlink()
    plan = Plan.load(path)
    assert plan.edits == fitted.edits
    assert not plan.tensors
    with pytest.raises(ValueError, match="fitted tensors .* are missing"):
        apply_plan(build("timm"), plan)


def test_other_sidecar_is_refused(fitted: Plan, tmp_path: Path) -> None:
    path = fitted.save(tmp_path / "plan.json")
    sidecar = path.with_suffix(".safetensors")
    sidecar.write_bytes(sidecar.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"plan\.safetensors has another sha256\. Copy both files again"):
        Plan.load(path)


def test_sidecar_is_only_looked_for_beside_the_plan(fitted: Plan, tmp_path: Path) -> None:
    path = fitted.save(tmp_path / "a" / "plan.json")
    data = json.loads(path.read_text())
    data["sidecar"]["file"] = "../elsewhere/plan.safetensors"
    path.write_text(json.dumps(data))
    assert Plan.load(path).tensors.keys() == fitted.tensors.keys()


GOOD = Plan(edits=(e.Remove(unit="a", kind="attention"),)).to_dict()
BROKEN: dict[str, tuple[Any, str]] = {
    "cut off": ('{"schema": "prunerecover.plan/1", "edi', r"a plan in JSON at .*cannot be read: .*Is it cut off\?"),
    "binary": (b"\xff\xfe\x00\x80", "cannot be read"),
    "a list": ([1, 2], r"Expected a plan .*Is it a plan file\?"),
    "foreign": ({"schema": "other/1"}, "Expected a plan"),
    "no schema": ({"edits": []}, "Expected a plan"),
    "newer": (
        {**GOOD, "schema": "prunerecover.plan/2", "made_by": {"version": "9.1"}},
        r"of schema prunerecover\.plan/1, but got prunerecover\.plan/2\. It was made by prunerecover 9\.1",
    ),
    "newer, nameless": ({"schema": "prunerecover.plan/7"}, "prunerecover of unknown version; install that version"),
    "unknown op": (
        {**GOOD, "edits": [{"op": "rotate"}], "made_by": {"version": "9.1"}},
        r"operations remove, .*, rewrite, .*, refit of prunerecover .*, but the plan \(made by 9\.1\) has 'rotate'",
    ),
    "edit is no object": ({**GOOD, "edits": ["remove"]}, "Expected a valid plan, but .* wrong: "),
    "edit without op": ({**GOOD, "edits": [{"unit": "a"}]}, "Expected a valid plan, but .* wrong: "),
    "edits are no list": ({**GOOD, "edits": 3}, "Expected a valid plan, but .* wrong: "),
    "field missing": ({**GOOD, "edits": [{"op": "remove"}]}, "Expected a valid plan, but .* wrong: "),
    "field unknown": ({**GOOD, "extra": 1}, "Expected a valid plan, but .* wrong: "),
    "what cannot be left": (
        {**GOOD, "edits": [{"op": "replace", "unit": "a", "kind": "attention", "leaves": "slope_bias"}]},
        "a removed attention to leave one of identity, affine, constant, but got slope_bias",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_file_that_is_no_plan_is_explained(case: str, tmp_path: Path) -> None:
    content, message = BROKEN[case]
    path = tmp_path / "plan.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=message):
        Plan.load(path)


def test_missing_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Expected a plan file at .*, but there is none"):
        Plan.load(tmp_path / "none.json")


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(3, ["timm", "timm_all", "bert", "llama"]))
def test_sum_of_plans_equals_one_after_the_other(name: str) -> None:
    kind = "mlp" if name == "llama" else "activation"
    batches = batches_of(name)
    model, fresh = build(name), build(name)
    first = plan_depth(model, remove={"attention": 1, kind: 1, "block": 1}, batches=batches)
    apply_plan(model, first)
    second = plan_depth(model, remove={"attention": 1, kind: 1}, batches=batches)
    apply_plan(model, second)
    both = first + second
    assert both.source == first.source
    assert both.result == second.result
    assert set(both.needed_tensors) <= both.tensors.keys()
    apply_plan(fresh, both)
    assert torch.equal(output_of(fresh, batch_of(name)), output_of(model, batch_of(name)))


def test_empty_plan_is_neutral(fitted: Plan) -> None:
    assert Plan() + fitted == fitted
    assert fitted + Plan() == fitted


def test_plans_that_do_not_meet_are_refused(fitted: Plan) -> None:
    with pytest.raises(ValueError, match="the second plan to start from the model the first one leaves"):
        fitted + fitted
