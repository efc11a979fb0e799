"""Pruning in width with default arguments on networks of all kinds, with random weights: a row per network.

    python -m benchmarks.width.zoo [--suite SUITE ...] [--only NAME ...] [--again-failed]

Every network of benchmarks/width/zoo_networks is planned at 30% of its MACs, pruned, trained for one step, saved, and
loaded in another process, where it has to give the same bits. Rows are written as they are measured; a run that was
interrupted goes on where it was. A network that crashes or takes longer than `--timeout` is a row, too. torchvision,
timm and transformers come with the project; for the suite ultralytics, which is no dependency (its licence is
AGPL-3.0), that package has to be installed by hand, else the page says that it is missing. An hour on one core.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rich.progress import track

from benchmarks.data.real import parser, stored, write
from benchmarks.width.zoo_networks.suites import SUITES, available
from benchmarks.width.zoo_page import markdown
from benchmarks.width.zoo_trial import ASKED, SEED, STEPS, Row, prepare
from benchmarks.width.zoo_worker import Lost, Worker

NAME, KIND = "zoo", "width"
CALLS = 100  # of a process, before another one takes its place: what libraries keep in memory goes with it
Name = tuple[str, str, str]  # kind, suite, and the name in it


def main() -> None:
    """Measure the networks that have no row yet."""
    options = arguments()
    found, missing = available()
    for reason in missing.values():
        print(reason)
    rows = {key(row): row for row in stored(NAME) if row["name"] in found.get(row["suite"], {row["name"]: None})}
    names = [(KIND, suite, name) for suite in options.suite for name in found.get(suite, {})]
    due = [name for name in names if is_chosen(name, options.only) and is_due(rows.get(name), options.again_failed)]
    workers = [Worker(prepare) for _ in STEPS]
    for count, name in enumerate(track(due, "networks")):
        if count % CALLS == 0:
            stop(workers)
        rows[name] = measured(workers, name, options.timeout)
        save(rows.values(), missing)
    stop(workers)
    save(rows.values(), missing)


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    command_line = parser(__doc__)
    command_line.add_argument("--suite", nargs="+", choices=SUITES, default=SUITES, help="these suites alone")
    command_line.add_argument("--only", nargs="+", metavar="NAME", default=["*"], help="these alone, as shell patterns")
    command_line.add_argument("--again-failed", action="store_true", help="measure anew what is not ok")
    command_line.add_argument("--timeout", type=float, default=120, help="seconds that a network may take")
    return command_line.parse_args()


def is_chosen(name: Name, patterns: list[str]) -> bool:
    """Return whether a network is one of those that were named."""
    return any(fnmatch(name[-1], pattern) for pattern in patterns)


def is_due(row: Row | None, again_failed: bool) -> bool:
    """Return whether a network is to be measured, given the row that it has."""
    return row is None or (again_failed and row["outcome"] != "ok")


def key(row: Row) -> Name:
    """Return the network that a row is of."""
    return row["kind"], row["suite"], row["name"]


def measured(workers: list[Worker], which: Name, timeout: float) -> Row:
    """Return the row of a network; each step runs in a process of its own."""
    kind, suite, name = which
    row: Row = {"name": name, "suite": suite, "kind": kind, "outcome": "ok", "asked": ASKED, "removed": None}
    for worker in workers:
        worker.start()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for worker, step in zip(workers, STEPS, strict=True):
            try:
                found = worker.call(step, suite, name, Path(folder), timeout=timeout)
            except (Lost, RuntimeError) as error:
                found = {"outcome": "failed", "reason": f"{step.__name__}: {error}"}
            row |= joined(row, found)
            if not Path(folder, "pruned").is_dir():
                break
    return row | {"seconds": round(time.perf_counter() - started, 1)}


def joined(row: Row, found: Row) -> dict[str, Any]:
    """Return what a step adds to a row: the first outcome that is not ok stays, with every reason.

    >>> joined({"outcome": "failed", "reason": "too much"}, {"outcome": "ok", "rebuilt": True})
    {'outcome': 'failed', 'rebuilt': True, 'reason': 'too much'}
    """
    reasons = [each["reason"] for each in (row, found) if "reason" in each]
    outcome = row["outcome"] if row["outcome"] != "ok" else found["outcome"]
    return {**found, "outcome": outcome, **({"reason": "; ".join(reasons)} if reasons else {})}


def save(rows: Iterable[Row], missing: dict[str, str]) -> None:
    """Write the rows and the page, suite by suite; `missing` counts for suites that earlier runs left no rows of."""
    in_order = sorted(rows, key=lambda row: SUITES.index(row["suite"]))
    missing = {suite: why for suite, why in missing.items() if all(row["suite"] != suite for row in in_order)}
    write(NAME, {"seed": SEED, "missing": missing, "rows": in_order}, markdown(in_order, missing))


def stop(workers: list[Worker]) -> None:
    """End the processes."""
    for worker in workers:
        worker.stop()


if __name__ == "__main__":
    main()
