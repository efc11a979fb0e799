"""The ledger in a checkpoint: read as written, also from earlier versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases.old_files import CHECKPOINTS

from prunerecover.checkpoint.ledger_record import KEY, SCHEMA, LedgerRecord, ScheduleStart, SurgeryEvent

OLD = Path(__file__).parent / "old_files"
EVENT: dict[str, Any] = {"by": "DepthPrune.0", "target": "net", "epoch": 1, "units": ["blocks.0.attn"]}


def in_file(name: str) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(OLD / name, weights_only=True)[KEY]
    return found


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_written_again_is_the_same(name: str, tmp_path: Path) -> None:
    record = LedgerRecord.from_dict(in_file(name))
    torch.save(record.to_dict(), tmp_path / "ledger.pt")
    again = torch.load(tmp_path / "ledger.pt", weights_only=True)
    states, wanted = again.pop("random_states"), in_file(name)
    assert [state["python"] for state in states] == [state["python"] for state in wanted["random_states"]]
    assert all(
        torch.equal(*(s["torch"] for s in pair)) for pair in zip(states, wanted.pop("random_states"), strict=True)
    )
    for adapters in wanted["adapters"].values():
        adapters["settings"].pop("vectors", None)  # written by earlier versions; `modules_to_save` says as much
    assert again == wanted


def test_what_surgeries_took_stays_a_whole_number() -> None:
    taken = SurgeryEvent(**EVENT, taken={"attention": 1, "macs": 0.5}).to_dict()["taken"]
    assert [type(value) for value in taken.values()] == [int, float]


def test_entries_that_earlier_versions_did_not_write() -> None:
    record = LedgerRecord.from_dict({"schema": SCHEMA, "plans": {}, "events": [EVENT], "begun": {"DepthPrune.0": {}}})
    assert record.events == (SurgeryEvent(by="DepthPrune.0", target="net", epoch=1, units=("blocks.0.attn",)),)
    assert record.events[0].seconds is None
    assert record.events[0].taken == {}
    assert record.begun == {"DepthPrune.0": ScheduleStart(events=0)}
    assert record.optimizers is None
    assert record.random_states is None


def test_entries_that_this_version_does_not_know_are_left_out() -> None:
    assert LedgerRecord.from_dict({"schema": SCHEMA, "weather": "fair"}) == LedgerRecord()


@pytest.mark.parametrize("data", [None, [], {}, {"schema": "prunerecover.ledger/2"}])
def test_another_schema_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="ledger of schema prunerecover.ledger/1, but got .* install that version"):
        LedgerRecord.from_dict(data)


def test_an_edited_ledger_is_refused() -> None:
    wrong = {"schema": SCHEMA, "events": [{**EVENT, "epoch": "soon"}]}
    with pytest.raises(
        ValueError, match=r"(?s)Expected a complete ledger, but .*events.0.epoch.* Was the checkpoint ed"
    ):
        LedgerRecord.from_dict(wrong)
