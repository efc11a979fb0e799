"""Plans as data: exact round trips, composition, and files that are not plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.engine import batch_of, batches_of, build, output_of
from cases.sampling import one_in
from hypothesis import given, settings
from hypothesis import strategies as st

from prunerecover.apply import apply_plan
from prunerecover.plan.edits import Config, Merge, Narrow, Remove, Replace, Reroute, Rewrite
from prunerecover.plan.groups import Setting, Slice
from prunerecover.plan.plan import Plan
from prunerecover.plan.records import MadeBy, Result, Source
from prunerecover.planning.plan_depth import plan_depth

text = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)
primitives = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | text
)
json_values = st.recursive(
    primitives, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
)
json_objects = st.dictionaries(text, json_values, max_size=3)
keys = st.lists(st.builds("e{}.{}".format, st.integers(0, 99), st.sampled_from(["weight", "bias"])), max_size=3).map(
    tuple
)
offsets = st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple)
slices = st.builds(
    Slice, tensor=text, dim=st.integers(0, 3), offsets=offsets, span=st.integers(1, 9), makes=st.booleans()
)
edits = st.one_of(
    st.builds(Remove, unit=text, kind=st.sampled_from(["block", "attention", "mlp"])),
    st.builds(
        Replace,
        unit=text,
        kind=st.sampled_from(["attention", "mlp"]),
        leaves=st.sampled_from(["identity", "affine", "constant"]),
        tensors=keys,
    ),
    st.builds(
        Replace,
        unit=text,
        kind=st.just("activation"),
        leaves=st.sampled_from(["identity", "affine", "slope_bias"]),
        tensors=keys,
    ),
    st.builds(
        Merge, into=text, from_=st.lists(text, max_size=3).map(tuple), norm=st.none() | text, scale=st.none() | text
    ),
    st.builds(Config, set=json_objects),
    st.builds(
        Narrow,
        unit=text,
        kind=st.sampled_from(["channel", "head", "neuron", "expert"]),
        of=st.just(9),
        keep=st.sets(st.integers(0, 8), min_size=1).map(sorted).map(tuple),
        group=st.lists(slices, max_size=2).map(tuple),
        settings=st.lists(st.builds(Setting, module=text, attribute=text, per_unit=st.integers(0, 9)), max_size=2).map(
            tuple
        ),
    ),
    st.builds(Rewrite, unit=text, in_channels=st.just(3), out_channels=st.just(5), stride=st.integers(1, 3)),
    st.builds(
        Reroute, unit=text, calls=st.lists(st.from_regex(r"[a-z.]+:[0-9](\[[0-9]\])?", fullmatch=True), min_size=1)
    ),
)
plans = st.builds(
    Plan,
    source=st.builds(Source, class_=text, constructor=st.none() | json_objects, tensors=text, weights=st.none() | text),
    result=st.builds(Result, tensors=text, params=st.integers(0, 2**40), macs=st.integers(0, 2**60)),
    made_by=st.builds(MadeBy, method=text, arguments=json_objects, version=text, seed=st.integers(0, 2**31)),
    edits=st.lists(edits, max_size=4).map(tuple),
    evidence=json_objects,
)


@given(plan=plans)
@settings(max_examples=15, deadline=None)
def test_json_round_trip_is_exact(plan: Plan) -> None:
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert again.edits == plan.edits
    assert json.dumps(again.to_dict()) == json.dumps(plan.to_dict())


def test_json_has_the_names_that_are_written_down() -> None:
    plan = Plan(
        source=Source(class_="a.B"),
        edits=(
            Remove(unit="blocks.9.attn", kind="attention"),
            Merge(into="blocks.11.mlp.fc1", from_=("blocks.11.mlp.fc1", "blocks.11.mlp.fc2")),
        ),
    )
    data = plan.to_dict()
    assert data["schema"] == "prunerecover.plan/1"
    assert data["source"]["class"] == "a.B"
    assert data["edits"][0] == {"op": "remove", "unit": "blocks.9.attn", "kind": "attention", "leaves": "zero"}
    assert data["edits"][1]["from"] == ["blocks.11.mlp.fc1", "blocks.11.mlp.fc2"]


@pytest.fixture(scope="module")
def fitted() -> Plan:
    return plan_depth(build("timm"), remove={"attention": 1, "activation": 2}, batches=batches_of("timm"))


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


GOOD = Plan(edits=(Remove(unit="a", kind="attention"),)).to_dict()
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
