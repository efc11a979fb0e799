"""The file of trials: what was cut off, moved or foreign, files of several ranks, and the table."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from cases.models.habits import Plain

from prunerecover.callbacks.trials.records import TrialRecord, append_record, read_records, table
from prunerecover.callbacks.trials.runner import TrialRunner


def record(key: str, accuracy: float = 50.0) -> TrialRecord:
    return TrialRecord(key, {"attention": 1, "activation": 2}, 0, accuracy, 60.0, 2**20)


@pytest.mark.parametrize("cut", [1, 30, -1])
def test_a_line_that_was_cut_off_is_dropped_and_the_file_goes_on(tmp_path: Path, cut: int) -> None:
    store = tmp_path / "trials.jsonl"
    for key in ("a", "b"):
        append_record(store, 0, record(key))
    first, second = store.read_bytes().splitlines(keepends=True)
    store.write_bytes(first + second[:cut])
    assert read_records(store) == {"a": record("a")}
    for key in ("b", "c"):
        append_record(store, 0, record(key))
    assert read_records(store) == {key: record(key) for key in "abc"}


def test_every_rank_has_a_file_and_all_are_read(tmp_path: Path) -> None:
    store = tmp_path / "plan[1].trials.jsonl"
    assert read_records(store) == {}
    for rank in (1, 11):
        append_record(store, rank, record(f"of rank {rank}"))
    assert {file.name for file in tmp_path.iterdir()} == {"plan[1].trials.1.jsonl", "plan[1].trials.11.jsonl"}
    assert set(read_records(store)) == {"of rank 1", "of rank 11"}
    append_record(store, 0, record("of rank 0"))
    assert set(read_records(store)) == {"of rank 0", "of rank 1", "of rank 11"}


def test_a_file_that_was_moved_away_is_not_read(tmp_path: Path) -> None:
    append_record(tmp_path / "trials.old.jsonl", 0, record("a"))
    append_record(tmp_path / "other.trials.jsonl", 0, record("b"))
    assert read_records(tmp_path / "trials.jsonl") == {}


@pytest.mark.parametrize("line", ['{"key": "b"}', '{"epoch": 3, "loss": 0.1}', "step,loss", "[1, 2]", '"key"', "{}}"])
def test_a_foreign_line_is_refused(tmp_path: Path, line: str) -> None:
    store = tmp_path / "trials.jsonl"
    append_record(store, 0, record("a"))
    with store.open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(ValueError, match="Expected one trial per line in .*trials.jsonl, but got .* Move the file"):
        TrialRunner(Plain(), None, store)
    assert len(store.read_text().splitlines()) == 2


def test_a_file_of_the_first_version_is_read(tmp_path: Path) -> None:
    """It counts attentions and activations by themselves."""
    old = {"key": "a", "attention": 1, "activation": 2, "seed": 0, "accuracy": 50.0, "seconds": 60.0}
    (tmp_path / "trials.jsonl").write_text(json.dumps({**old, "peak_memory_bytes": 2**20}) + "\n")
    assert read_records(tmp_path / "trials.jsonl") == {"a": record("a")}


def test_the_table_has_a_column_per_kind() -> None:
    other = dataclasses.replace(record("b", 60.0), removed={"neuron": 9})
    head, _, *rows = table([record("a", 40.0), other]).splitlines()
    assert head.startswith("| attentions removed | activations removed | neurons removed | seed |")
    assert rows == ["| 0 | 0 | 9 | 0 | 60.00 | 1.0 | 1 MiB |", "| 1 | 2 | 0 | 0 | 40.00 | 1.0 | 1 MiB |"]


def test_the_table_begins_with_the_best() -> None:
    rows = table([record("a", 40.0), record("b", 60.0)]).splitlines()[2:]
    assert rows == ["| 1 | 2 | 0 | 60.00 | 1.0 | 1 MiB |", "| 1 | 2 | 0 | 40.00 | 1.0 | 1 MiB |"]
