"""A plan's two files: complete after a kill, and refused unless they form a plan that could have been saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.files.kills import killed_at_rename
from cases.sampling import one_in

from prunerecover import Plan
from prunerecover.files import json_file
from prunerecover.files.plan_file import read_data, read_saved
from prunerecover.plan.edits import Remove, Replace


def fitted(unit: str, value: float) -> Plan:
    edit = Replace(unit=unit, kind="attention", leaves="constant", tensors=("e0.bias",))
    return Plan(edits=(edit,)).with_tensors({"e0.bias": torch.full((3,), value)})


BARE = Plan(edits=(Remove(unit="b", kind="attention"),))
OLD, NEW = fitted("a", 1.0), fitted("b", 2.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"), one_in(3, [(OLD, NEW), (OLD, BARE), (BARE, NEW)]), ids=["both", "none", "first"]
)
def test_a_kill_leaves_the_old_plan_or_the_new_one(old: Plan, new: Plan, tmp_path: Path) -> None:
    path, kills = tmp_path / "plan.json", 0
    old.save(path)
    while killed_at_rename(kills, lambda: new.save(path)):
        assert Plan.load(path) == old
        kills += 1
        assert killed_at_rename(kills, lambda: new.save(path)) or Plan.load(path) == new
        old.save(path)
        assert Plan.load(path) == old
    assert kills == (1 if new is BARE else 2 + (old is OLD))
    new.save(path)
    assert not [file for file in tmp_path.iterdir() if file.name.endswith(".old")]


def test_a_plan_is_saved_over_what_is_no_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("[]")
    (tmp_path / "plan.safetensors").write_text("no tensors")
    assert Plan.load(NEW.save(tmp_path / "plan.json")) == NEW


def nested(levels: int) -> str:
    return '{"schema": "prunerecover.plan/1", "evidence": ' + '{"a": ' * levels + "1" + "}" * levels + "}"


HUGE = '{"schema": "prunerecover.plan/1", "result": {"params": ' + "9" * 5000 + "}}"
ODD = {
    "deep": (nested(100), "Expected a plan with at most 64 levels of lists and objects at .* but got more. Is it"),
    "deeper than a parser goes": (nested(10**5), "Expected a plan with at most 64 levels of lists and objects at .*"),
    "a number of 5000 digits": (HUGE, "Expected a plan in JSON at .*, but it cannot be read: .*5000 digits"),
}


@pytest.mark.parametrize("case", ODD)
def test_json_that_is_too_much(case: str, tmp_path: Path) -> None:
    text, message = ODD[case]
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        Plan.load(tmp_path / "plan.json")


MANY = 20_000
WRONG: dict[str, dict[str, Any]] = {
    "edits": {"edits": [{"op": "remove"}] * MANY},
    "entries of an edit": {"edits": [{"op": "remove", **dict.fromkeys(map(str, range(MANY)), 1)}]},
    "units": {"edits": [{"op": "narrow", "unit": "a", "kind": "head", "of": 9, "group": [], "keep": ["x"] * MANY}]},
    "names": {"edits": [{"op": "remove", "unit": "x" * MANY, "kind": "y" * MANY, "z" * MANY: 1}]},
    "paths": {"edits": [{"op": "remove", "unit": "x" * MANY, "kind": "block"}]},
    "operations": {"edits": [{"op": "x" * MANY}]},
    "schemas": {"schema": "prunerecover.plan/" + "9" * MANY},
    "settings": {"source": {"settings": dict.fromkeys(map(str, range(MANY)), 1)}},
    "hashes": {"saved": {"sha256": dict.fromkeys(map(str, range(MANY)), 1)}},
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_many_times_is_told_in_short(what: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"schema": "prunerecover.plan/1", **WRONG[what]}))
    read = read_saved if what == "hashes" else Plan.from_dict
    with pytest.raises(ValueError, match="Expected (a valid plan|a plan of|one of the|hashes).*, but") as raised:
        read(read_data(path))
    assert len(str(raised.value)) < 1000


def test_a_gigantic_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "plan.json").open("wb") as stream:
        stream.truncate(json_file.LARGEST + 2**20)
    with pytest.raises(ValueError, match="Expected a plan of at most 256 MiB at .*, but got 257 MiB. Is it another"):
        Plan.load(tmp_path / "plan.json")


def edited(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


LONG = [{"file": name, "sha256": "0"} for name in ("x" * 5000, "\0", "\ud800", "")]


@pytest.mark.parametrize("sidecar", [{}, {"file": "plan.safetensors"}, {"file": "..", "sha256": "0"}, *LONG])
def test_a_sidecar_that_is_not_named(sidecar: dict[str, str], tmp_path: Path) -> None:
    path = edited(NEW.save(tmp_path / "plan.json"), sidecar=sidecar)
    told = "Expected name and sha256 of the file with the fitted tensors in .* but got"
    with pytest.raises(ValueError, match=told) as raised:
        Plan.load(path)
    assert len(str(raised.value)) < 500


def test_a_sidecar_that_holds_no_tensors(tmp_path: Path) -> None:
    path, other = NEW.save(tmp_path / "plan.json"), tmp_path / "plan.safetensors"
    other.write_bytes(b"no tensors")
    from prunerecover.files.hashes import sha256_of

    edited(path, sidecar={"file": other.name, "sha256": sha256_of(other)})
    with pytest.raises(ValueError, match="Expected tensors in safetensors at .* but it cannot be read"):
        Plan.load(path)
