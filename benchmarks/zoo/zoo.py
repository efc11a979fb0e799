"""Pruning in width, in depth or in both on networks of all kinds, with random weights: a row per network.

    python -m benchmarks.zoo.zoo --kind width|depth|joint [--suite SUITE ...] [--only NAME ...] [--sample N]
        [--again-failed] [--no-onnx]
    python -m benchmarks.zoo.zoo --kind depth --sequences N [--only NAME ...]

Every network of benchmarks/zoo/networks is planned (in width and jointly at 30% of its MACs, in depth for three of its
units, drawn at random), pruned, trained for a step, saved, loaded in another process with bitwise equal outputs, and
exported as ONNX in a third process, where onnxruntime has to compute the same outputs, with free sizes or with fixed
ones. With `--sequences N`, up to five units in a row are removed from each small architecture of tests/cases/depth, in
N random ways. Rows are written at once; an interrupted run continues, and rows with missing figures are measured again.
A network that crashes or takes longer than `--timeout` has a row, too. torchvision, timm and transformers come with the
project; the suite ultralytics (AGPL-3.0) is no dependency, and its package has to be installed by hand, or the page
lists it as missing. Two hours on one core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from rich.progress import track

from benchmarks.runner.benchmark import command_line
from benchmarks.runner.rows import RESULTS, command
from benchmarks.zoo import depth_trial, sequences, width_trial
from benchmarks.zoo.networks.suites import SUITES, available
from benchmarks.zoo.page import DEPTH, JOINT, WIDTH, Page
from benchmarks.zoo.trial import LATE, SEED, Row, exported, prepare, reloaded
from benchmarks.zoo.worker import Late, Lost, Worker
from prunerecover.cost.environment import cpu_name, versions
from prunerecover.files.atomic import write_text

CALLS = 100  # calls of a process before a fresh one, to free the memory kept by libraries
FURTHER = ("torchvision", "ultralytics")  # packages that rows depend on, too
UNKNOWN: Row = {"planning_seconds": None, "dead": None, "onnx": None}  # entries of a row before the measurement
Name = tuple[str, str]  # suite, and name in the suite
Step = Callable[[str, str, Path], Row]


@dataclass(frozen=True)
class Dimension:
    """Measurement of networks: the page's name, the first step, and the initial row.

    A row without all of these entries is from an earlier version.
    """

    page: Page
    pruned: Step
    row: Row


SHARE: Row = {"asked": width_trial.ASKED, "removed": None} | UNKNOWN
DIMENSIONS = {
    "width": Dimension(WIDTH, width_trial.pruned, SHARE),
    "joint": Dimension(JOINT, width_trial.pruned_jointly, SHARE),
    "depth": Dimension(DEPTH, depth_trial.pruned, UNKNOWN),
}


def main() -> None:
    """Measure the networks without a row, or random sequences."""
    options = arguments()
    if options.sequences:
        measure_sequences(options)
    else:
        measure_networks(options)


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--kind", choices=DIMENSIONS, required=True, help="the dimension in which units go")
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=SUITES, help="these suites alone")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=["*"], help="these alone, as shell patterns")
    parser.add_argument("--sample", type=int, metavar="N", help="at most so many of these, drawn at random")
    parser.add_argument("--again-failed", action="store_true", help="measure anew what is not ok")
    parser.add_argument("--no-onnx", action="store_true", help="leave exports out, which take longest")
    parser.add_argument("--timeout", type=float, default=120, help="seconds that a network may take")
    parser.add_argument("--sequences", type=int, metavar="N", help="random sequences of each small architecture")
    options = parser.parse_args()
    if options.sequences and options.kind != "depth":
        parser.error("--sequences are of --kind depth")
    return options


def measure_networks(options: argparse.Namespace) -> None:
    """Write the rows of networks."""
    dimension = DIMENSIONS[options.kind]
    found, missing = available()
    for reason in missing.values():
        print(reason)
    earlier = stored(dimension.page.name)
    rows = {key(row): row for row in earlier if row["name"] in found.get(row["suite"], {row["name"]: None})}
    names = [(suite, name) for suite in options.suite for name in found.get(suite, {})]
    chosen = [name for name in names if is_chosen(name, options.only)]
    drawn = Random(SEED).sample(chosen, min(options.sample or len(chosen), len(chosen)))
    chosen = [name for name in chosen if name in drawn]
    due = [name for name in chosen if is_due(rows.get(name), options.again_failed, dimension)]
    steps = (dimension.pruned, reloaded, *(() if options.no_onnx else (exported,)))
    workers = {step: Worker(prepare) for step in steps}  # each step in a process of its own
    for count, name in enumerate(track(due, "networks")):
        if count % CALLS == 0:
            stop(workers.values())
        rows[name] = measured(workers, options.kind, name, options.timeout)
        save(options.kind, rows.values(), missing)
    stop(workers.values())
    save(options.kind, rows.values(), missing)


def measure_sequences(options: argparse.Namespace) -> None:
    """Write the rows of random sequences, a few at a time."""
    page = DIMENSIONS["depth"].page.name
    rows = {row["name"]: row for row in stored(page, "sequences")}
    networks, missing = stored(page), available()[1]
    worker = Worker(prepare)
    for number, name in enumerate(track([n for n in sequences.names() if is_chosen((n,), options.only)], "sequences")):
        if number % 10 == 0:
            worker.stop()
        row = rows.setdefault(name, sequences.empty(name))
        while row["n"] < options.sequences:
            some = range(row["n"], min(row["n"] + sequences.AT_ONCE, options.sequences))
            try:
                found = worker.call(sequences.run, name, some, timeout=options.timeout)
            except (Lost, RuntimeError) as error:
                found = sequences.lost(some, str(error))
            sequences.add(row, found)
            save("depth", networks, missing, [rows[name] for name in sequences.names() if name in rows])
    worker.stop()


def is_chosen(name: tuple[str, ...], patterns: list[str]) -> bool:
    """Whether a network's name matches a pattern."""
    return any(fnmatch(name[-1], pattern) for pattern in patterns)


def is_due(row: Row | None, again_failed: bool, dimension: Dimension) -> bool:
    """Whether to measure a network, given its present row."""
    return row is None or not dimension.row.keys() <= row.keys() or (again_failed and row["outcome"] != "ok")


def key(row: Row) -> Name:
    """Return the network of a row."""
    return row["suite"], row["name"]


def measured(workers: Mapping[Step, Worker], kind: str, which: Name, timeout: float) -> Row:
    """Return the row of a network; each step runs in a process of its own."""
    dimension, (suite, name) = DIMENSIONS[kind], which
    row: Row = {"name": name, "suite": suite, "kind": kind, "outcome": "ok", **dimension.row}
    for worker in workers.values():
        worker.start()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for step, worker in workers.items():
            try:
                found = worker.call(step, suite, name, Path(folder), timeout=timeout)
            except (Lost, RuntimeError) as error:
                found = {"outcome": "failed", "reason": f"{step.__name__}: {error}"}
                if isinstance(error, Late) and step is exported:  # unrolled loops take long to convert
                    found = {"outcome": "ok", "onnx": LATE, "onnx_reason": str(error)}
            row |= joined(row, found)
            if not Path(folder, "pruned").is_dir():
                break
    return row | {"seconds": round(time.perf_counter() - started, 1)}


def joined(row: Row, found: Row) -> dict[str, Any]:
    """Return a step's additions to a row: the first outcome other than ok stays, with every reason.

    >>> joined({"outcome": "failed", "reason": "too much"}, {"outcome": "ok", "rebuilt": True})
    {'outcome': 'failed', 'rebuilt': True, 'reason': 'too much'}
    """
    reasons = [each["reason"] for each in (row, found) if "reason" in each]
    outcome = row["outcome"] if row["outcome"] != "ok" else found["outcome"]
    return {**found, "outcome": outcome, **({"reason": "; ".join(reasons)} if reasons else {})}


def save(kind: str, rows: Iterable[Row], missing: dict[str, str], others: list[Row] | None = None) -> None:
    """Write the rows and the page, suite by suite.

    Args:
        kind: Kind of the trials.
        rows: Rows of networks.
        missing: Reasons for missing suites; they count for suites without rows.
        others: Rows of sequences in depth; None: the rows of earlier runs.
    """
    name = DIMENSIONS[kind].page.name
    in_order = sorted(rows, key=lambda row: SUITES.index(row["suite"]))
    missing = {suite: why for suite, why in missing.items() if all(row["suite"] != suite for row in in_order)}
    known = {**versions(), **{package: version(package) for package in FURTHER if find_spec(package)}}
    record: dict[str, Any] = {"command": command(), "cpu": cpu_name(), "versions": known}
    record |= {"seed": SEED, "missing": missing, "rows": in_order}
    if kind == "depth":
        record["sequences"] = stored(name, "sequences") if others is None else others
    write_text(RESULTS / f"{name}.json", json.dumps(record, indent=2) + "\n")
    write_text(RESULTS / f"{name}.md", DIMENSIONS[kind].page.markdown(record))


def stored(name: str, key: str = "rows") -> list[Row]:
    """Return the rows of earlier runs in the results of a name."""
    path = RESULTS / f"{name}.json"
    return list(json.loads(path.read_text()).get(key, [])) if path.is_file() else []


def stop(workers: Iterable[Worker]) -> None:
    """End the processes."""
    for worker in workers:
        worker.stop()


if __name__ == "__main__":
    main()
