"""The quickstart's figures for the README; without data or weights.

python -m benchmarks.end_to_end.quickstart
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.rows import RESULTS
from prunerecover.recipes.quickstart import run_quickstart, summary


def measure() -> dict[str, Any]:
    """Run three seeds and keep the report and the figures."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        report = run_quickstart(seeds=3, output=folder)
        seconds = time.perf_counter() - started
        text = Path(folder, "report.md").read_text()
        for figure in Path(folder).glob("*.png"):
            shutil.copy(figure, RESULTS / f"quickstart_{figure.name}")
            text = text.replace(f"({figure.name})", f"(quickstart_{figure.name})")
        record = json.loads(Path(folder, "report.json").read_text())
    lines = [*summary(report), f"Whole command: {seconds:.0f} s."]
    return {"seconds": seconds, "report": record, "page": "\n\n".join([text.strip(), "\n".join(lines)])}


BENCHMARK = Benchmark(
    title="The quickstart, mean of three seeds",
    text="The report of `prunerecover quickstart`, as it writes it.",
    measure=measure,
    references=[{}],
    closing=lambda rows: [row["page"] for row in rows],
    threads=0,
)

if __name__ == "__main__":
    BENCHMARK.main()
