"""The quickstart's figures, as the README shows them; no data or weights are needed.

python -m benchmarks.end_to_end.quickstart
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.data.real import RESULTS, command, parser, write
from prunerecover.recipes.quickstart import run_quickstart, summary


def main() -> None:
    """Run three seeds and keep the report and its figures."""
    parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        report = run_quickstart(seeds=3, output=folder)
        seconds = time.perf_counter() - started
        text = (Path(folder) / "report.md").read_text()
        for figure in Path(folder).glob("*.png"):
            shutil.copy(figure, RESULTS / f"quickstart_{figure.name}")
            text = text.replace(f"({figure.name})", f"(quickstart_{figure.name})")
        lines = [*summary(report), f"Whole command: {seconds:.0f} s.", "", f"`{command()}`"]
        record = {
            "seconds": seconds,
            "seeds": [0, 1, 2],
            "report": json.loads((Path(folder) / "report.json").read_text()),
        }
    write("quickstart", record, text.rstrip() + "\n\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
