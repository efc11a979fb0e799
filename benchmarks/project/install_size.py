"""Size of an installation: the package, and all dependencies.

    python -m benchmarks.project.install_size

Sizes are of the files that pip wrote into this environment: the package's dependencies and theirs, without its own
extras.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.page import Table
from benchmarks.runner.rows import ROOT, Row
from prunerecover.display.markdown import table

PACKAGE = "prunerecover"
OWN = ("prunerecover", "callbacks", "recipes", "configs")
LISTED = 8


def measure() -> Iterator[dict[str, Any]]:
    """Yield the size of each distribution, the largest first."""
    sizes = {name: installed_bytes(name) for name in sorted(needed(PACKAGE))} | {PACKAGE: own_bytes()}
    for name, size in sorted(sizes.items(), key=lambda entry: -entry[1]):
        yield {"method": name, "bytes": size}


def needed(name: str) -> set[str]:
    """Return the names of all other installed distributions among a distribution's dependencies."""
    found: set[tuple[str, str]] = set()
    waiting = [(name, "")]
    while waiting:
        package, extra = waiting.pop()
        for requirement in map(Requirement, distribution(package).requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                known = requirement.name.lower().replace("_", "-")
                new = {(known, wanted) for wanted in ("", *requirement.extras)} - found
                found |= new
                waiting += new
    return {package for package, _ in found} - {name}


def installed_bytes(name: str) -> int:
    """Return the bytes of a distribution's files."""
    paths = (Path(str(file.locate())) for file in distribution(name).files or ())
    return sum(path.stat().st_size for path in paths if path.is_file())


def own_bytes() -> int:
    """Return the bytes of the package's own files; an editable installation keeps them in the source tree."""
    return sum(path.stat().st_size for folder in OWN for path in (ROOT / folder).glob("**/*.py"))


def largest(rows: Sequence[Row]) -> str:
    """Render the sum, and the largest distributions."""
    sizes = {row.method: row["bytes"] for row in rows}
    lines = [(name, f"{size / 1e6:,.1f}") for name, size in sorted(sizes.items(), key=lambda entry: -entry[1])[:LISTED]]
    total = (
        f"{sum(sizes.values()) / 1e9:.1f} GB in {len(sizes)} packages, {sizes[PACKAGE] / 1e6:.1f} MB of it {PACKAGE}."
    )
    return f"{total} The largest:\n\n{table(('package', 'MB'), lines)}"


BENCHMARK = Benchmark(
    title="The size of an installation",
    text="Files of the package, of its dependencies and of theirs, without extras.",
    measure=measure,
    references=[{}],
    also=("method",),
    tables=(Table((), text=largest),),
)

if __name__ == "__main__":
    BENCHMARK.main()
