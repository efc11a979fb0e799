"""Records of trials, one JSON line each, appended as soon as a trial ends: a killed search continues from the file.

Each rank writes a separate file (`trials.jsonl`, `trials.1.jsonl`, ...), and no file has two writers; all files are
read. A line cut off in the middle of writing is skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prunerecover.boundary.feasible import TYPES
from prunerecover.display import markdown
from prunerecover.files.json_lines import append_json, complete_lines
from prunerecover.plan.kinds import plural

COLUMNS = ("seed", "accuracy", "minutes", "peak memory")  # after the removed units of each kind


@dataclass(frozen=True)
class TrialRecord:
    """Result of one trial.

    Attributes:
        key: Hash of everything that decides the result: plan, weights, seed, settings.
        removed: Number of removed units of each kind.
        seed: Seed of the run.
        accuracy: Accuracy after the run, in percent.
        seconds: Duration in seconds.
        peak_memory_bytes: Peak memory in bytes: of the process on a CPU, of the allocator on an accelerator.
    """

    key: str
    removed: Mapping[str, int]
    seed: int
    accuracy: float
    seconds: float
    peak_memory_bytes: int


def read_records(path: Path) -> dict[str, TrialRecord]:
    """Return all complete records by key; an empty dict if there is no file yet.

    Args:
        path: Path of the first rank's file.

    Raises:
        ValueError: If a complete line is no trial record.
    """
    found: dict[str, TrialRecord] = {}
    for file in files_of_ranks(path):
        for line in complete_lines(file):
            try:
                record = _record_of(json.loads(line))
            except (TypeError, KeyError, json.JSONDecodeError) as error:
                raise ValueError(
                    f"Expected one trial per line in {file}, but got {line[:60]!r}. Move the file away to start anew."
                ) from error
            found[record.key] = record
    return found


def files_of_ranks(path: Path) -> list[Path]:
    """Return the existing files of all ranks.

    Args:
        path: Path of the first rank's file.
    """
    of_a_rank = re.compile(rf"{re.escape(path.stem)}(\.\d+)?{re.escape(path.suffix)}")
    return sorted(file for file in path.parent.glob(f"*{path.suffix}") if of_a_rank.fullmatch(file.name))


def append_record(path: Path, rank: int, record: TrialRecord) -> None:
    """Add one record to a rank's file, on the disk before this function returns.

    Args:
        path: Path of the first rank's file.
        rank: Number of the rank, from 0.
        record: Record of a finished trial.
    """
    file = path.with_suffix(f".{rank}{path.suffix}") if rank else path
    append_json(file, asdict(record))


def table(records: Iterable[TrialRecord]) -> str:
    """Return the trials as a Markdown table, the best first."""
    records = list(records)
    kinds = list(dict.fromkeys(kind for record in records for kind in record.removed))
    rows = [
        (
            *(record.removed.get(kind, 0) for kind in kinds),
            record.seed,
            f"{record.accuracy:.2f}",
            f"{record.seconds / 60:.1f}",
            f"{record.peak_memory_bytes / 2**20:,.0f} MiB",
        )
        for record in sorted(records, key=lambda record: -record.accuracy)
    ]
    return markdown.table((*(f"{plural(kind)} removed" for kind in kinds), *COLUMNS), rows)


def _record_of(line: Any) -> TrialRecord:
    """Return the record of a line; files of version 0.1.0 count attentions and activations in fields of their own."""
    if isinstance(line, dict) and "removed" not in line:
        line["removed"] = {kind: line.pop(kind) for kind in TYPES}
    return TrialRecord(**line)
