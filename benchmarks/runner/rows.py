"""Rows of benchmarks: figures of a method at a budget, with intervals, in a JSON file per benchmark.

A figure keeps the score of every sample, if any, for later paired comparisons. The file is rewritten for each row,
under a lock: a killed run loses no finished row, and runs may add rows in parallel. The file also records the commands,
the machine and the versions.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prunerecover.cost.environment import cpu_name, versions
from prunerecover.cost.statistics import Interval, is_share, mean_interval, median_interval
from prunerecover.files.atomic import write_text

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
CHECKPOINTS = ROOT / "checkpoints"  # for files too large to keep with the results
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Figure:
    """A measured number.

    Attributes:
        value: Estimate.
        low: Lower end of the 95% interval; None: no interval.
        high: Upper end.
        n: Number of samples or repetitions.
        samples: Encoded score of each sample: hits 8 to a byte, other scores in single precision; empty: not kept.
    """

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 1
    samples: str = ""

    @classmethod
    def of(cls, scores: ArrayLike, seed: int = 0) -> Figure:
        """Return the mean of scores `(N,)` with its interval; the scores are kept."""
        values = np.asarray(scores, dtype=np.float64)
        raw = np.packbits(values.astype(bool)) if is_share(values) else values.astype(np.float32)
        found = cls.within(mean_interval(values, seed=seed), len(values))
        return cls(found.value, found.low, found.high, found.n, base64.b64encode(raw.tobytes()).decode())

    @classmethod
    def median(cls, values: ArrayLike, seed: int = 0) -> Figure:
        """Return the median of values `(N,)` with its interval."""
        return cls.within(median_interval(values, seed=seed), len(np.asarray(values)))

    @classmethod
    def within(cls, interval: Interval, n: int = 1) -> Figure:
        """Return the figure of an interval."""
        return cls(interval.value, interval.low, interval.high, n)

    @property
    def scores(self) -> Scores:
        """Score of every sample, `(N,)`."""
        raw = np.frombuffer(base64.b64decode(self.samples), dtype=np.uint8)
        if len(raw) == -(-self.n // 8):
            return np.unpackbits(raw)[: self.n].astype(np.float64)
        return raw.view(np.float32).astype(np.float64)


@dataclass(frozen=True)
class Row:
    """Figures of a method at a budget.

    Attributes:
        method: Name of the method.
        budget: Share or units to remove; None: the benchmark has no budgets.
        about: Further names of the row, such as its model, stage and seed.
        figures: Measured numbers by name.
        notes: Further results, such as removed units and seconds.
    """

    method: str
    budget: Any = None
    about: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, names: Mapping[str, Any], found: Mapping[str, Any]) -> Row:
        """Return the row of some names, from its figures and notes."""
        figures = {name: value for name, value in found.items() if isinstance(value, Figure)}
        notes = {name: value for name, value in found.items() if name not in figures}
        about = {name: value for name, value in names.items() if name not in ("method", "budget")}
        return cls(names.get("method", ""), names.get("budget"), about, figures, notes)

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Row:
        """Return the row of a JSON record."""
        figures = {name: Figure(**found) for name, found in record["figures"].items()}
        return cls(record["method"], record.get("budget"), record["about"], figures, record["notes"])

    @property
    def names(self) -> dict[str, Any]:
        """All names of the row."""
        return {"method": self.method, "budget": self.budget, **self.about}

    def is_of(self, **names: Any) -> bool:
        """Whether the row has these names, as read from JSON."""
        return all(name in self.names and self.names[name] == value for name, value in names.items())

    def __getitem__(self, name: str) -> Any:
        return self.names[name] if name in self.names else self.notes[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a name or a note; the default if there is none."""
        return {**self.notes, **self.names}.get(name, default)


@dataclass
class Results:
    """All rows of a benchmark, in a file.

    Attributes:
        path: JSON file.
        rows: Rows in the order of measurement.
        runs: Command, processor and versions of each run that added rows.
    """

    path: Path
    rows: list[Row] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, name: str, folder: Path | None = None) -> Results:
        """Return the results of a benchmark by name, without rows if the file is missing."""
        path = (folder or RESULTS) / f"{name}.json"
        record = json.loads(path.read_text()) if path.is_file() else {"rows": [], "runs": []}
        return cls(path, [Row.read(row) for row in record["rows"]], record["runs"])

    def find(self, **names: Any) -> list[Row]:
        """Return the rows with these names."""
        return [row for row in self.rows if row.is_of(**names)]

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows to the present file, which another run may have changed, and replace rows of the same names."""
        with _locked(self.path.parent):
            there = Results.read(self.path.stem, self.path.parent)
            run = {"command": command(), "processor": cpu_name(), "versions": versions()}
            names = [row.names for row in rows]
            self.rows = [row for row in there.rows if row.names not in names] + [*rows]
            self.runs = [other for other in there.runs if other["command"] != run["command"]] + [run]
            self.save()

    def save(self) -> None:
        """Write the file, a row on each line."""
        record = {"runs": self.runs, "rows": [asdict(row) for row in self.rows]}
        write_text(self.path, as_lines(record))


def as_lines(record: Mapping[str, Sequence[Any]]) -> str:
    """Return lists by name as JSON, an entry on each line."""
    parts = []
    for name, entries in record.items():
        lines = ",\n".join(json.dumps(entry) for entry in entries)
        parts.append(f'"{name}": [\n{lines}\n]' if entries else f'"{name}": []')
    return "{" + ",\n".join(parts) + "}\n"


def command() -> str:
    """Return the command of this process."""
    path = Path(sys.argv[0]).resolve()
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts) if path.is_relative_to(ROOT) else path.stem
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other runs from writing into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
