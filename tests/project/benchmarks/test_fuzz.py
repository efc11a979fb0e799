"""Broken files end well, on a seeded sample of the files in `benchmarks.end_to_end.fuzz`."""

from __future__ import annotations

import pickle
from pathlib import Path
from random import Random

import pytest
import torch

from benchmarks.end_to_end import fuzz, subjects
from benchmarks.runner.rows import Row

SAMPLE = range(0, 1000, 29)


@pytest.mark.slow
def test_a_sample_of_broken_files_ends_well() -> None:
    found = fuzz.run(SAMPLE)
    assert len(found) == len(SAMPLE)
    assert not [each for each in found if each.outcome not in fuzz.GOOD]
    assert {each.outcome for each in found} >= {"the same", "a clear error"}
    rows = [Row.of({"n": len(SAMPLE), "seed": 0, "method": row["method"]}, row) for row in fuzz.rows_of(found)]
    page = fuzz.BENCHMARK.markdown(rows, [])
    assert f"{len(SAMPLE)} of {len(SAMPLE)} end well" in page


@pytest.mark.slow
def test_what_goes_wrong_is_found(tmp_path: Path) -> None:
    """A loader without checks, a loader that fails deep inside, and a loader that writes and executes."""
    subject = next(s for s in fuzz.make_subjects(tmp_path / "whole") if s.name == "folder, alone")
    wanted = fuzz.logits(subject.opened(subject.files, None))

    def judged(opened, said="flip in model.safetensors"):
        broken = fuzz.Subject(subject.name, opened, subjects.vit, subject.mutations, subject.files)
        return fuzz.judge(broken, subject.files, said, wanted, set())[0]

    def fails(folder, model):
        return {}["edits"]

    def changes(folder, model):
        model.head = torch.nn.Identity()
        raise ValueError("Expected a plan.")

    def writes(folder, model):
        (folder / "x").touch()
        raise ValueError("Expected a plan.")

    def unclear(folder, model):
        raise ValueError("invalid literal")

    assert judged(lambda folder, model: model) == "another network"
    assert judged(lambda folder, model: subject.opened(folder, None)) == "the same"
    assert judged(fails) == "another error"
    assert judged(changes) == "an error, and a changed model"
    assert judged(writes) == "files written"
    assert judged(unclear) == "an unclear error"


def test_the_payload_would_execute(tmp_path: Path) -> None:
    """An unsafe reader executes the pickle, and the benchmark would notice."""
    (tmp_path / "files").mkdir()
    path = tmp_path / "files" / "plan.json"
    path.write_text("{}")
    draw = Random(0)
    while "payload" not in (said := fuzz.mutations.mutate_bytes(path, draw)):
        path.write_text("{}")
    assert said == "payload in plan.json"
    pickle.loads(path.read_bytes())
    assert (tmp_path / "executed").is_dir()
