"""Random sequences of removals in the small architectures of tests/cases/depth, checked as the tests check them."""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks.runner.rows import ROOT
from benchmarks.zoo.trial import Row

sys.path.append(str(ROOT / "tests"))

from cases.depth.architectures import ARCHITECTURES  # noqa: E402
from cases.depth.removal import check_sequence, removals_of  # noqa: E402

AT_ONCE = 10  # sequences of a call


def names() -> list[str]:
    """Return the names of all architectures."""
    return [*ARCHITECTURES]


def empty(name: str) -> Row:
    """Return the row of an architecture without sequences."""
    return {"name": name, "n": 0, "ok": 0, "removed": 0, "seconds": 0.0}


def run(name: str, seeds: Sequence[int]) -> Row:
    """Return how sequences of an architecture end: how many are ok, and the first failure."""
    started, found = time.perf_counter(), {**empty(name), "n": len(seeds)}
    removals = removals_of(*ARCHITECTURES[name]())
    for seed in seeds:
        try:
            with tempfile.TemporaryDirectory() as folder:
                found["removed"] += len(check_sequence(removals, seed, Path(folder)))
            found["ok"] += 1
        except Exception as error:  # whatever goes wrong is what is looked for
            found.setdefault("reason", f"seed {seed}: {_told(error)}")
    return found | {"seconds": round(time.perf_counter() - started, 1)}


def lost(seeds: Sequence[int], why: str) -> Row:
    """Return the addition to a row for a lost process: no sequence is ok."""
    return {**empty(""), "n": len(seeds), "reason": f"seeds {seeds[0]} to {seeds[-1]}: {why}"}


def add(row: Row, found: Row) -> None:
    """Add sequences to the row of their architecture; the first failure is kept.

    >>> row = {"name": "a", "n": 2, "ok": 2, "removed": 7, "seconds": 0.1}
    >>> add(row, {"name": "", "n": 2, "ok": 1, "removed": 3, "seconds": 0.2, "reason": "seed 3: no"})
    >>> row["n"], row["ok"], row["removed"], row["reason"]
    (4, 3, 10, 'seed 3: no')
    """
    for count in ("n", "ok", "removed"):
        row[count] += found[count]
    row["seconds"] = round(row["seconds"] + found["seconds"], 1)
    if "reason" in found:
        row.setdefault("reason", found["reason"])


def _told(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if str(error) else f"{text}{traceback.extract_tb(error.__traceback__)[-1].line}"
