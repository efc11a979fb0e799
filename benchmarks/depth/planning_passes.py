"""What planning costs: forward passes of DeiT-Tiny over its calibration images, counted in block calls.

    PRUNERECOVER_DATA=... python -m benchmarks.depth.planning_passes

A pass runs every block on every calibration image once. Blocks are counted and not timed, so that the figure does not
depend on the machine; the seconds beside it, of processor time, do. Divergence is of the merged plan on the held-out
images: what the search minimises.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from timm.models.vision_transformer import Block

from benchmarks.data.real import commands_so_far, deit_tiny, made_by, parser, stored, write
from benchmarks.data.tiny_imagenet import calibration
from prunerecover import Budget, plan_depth
from prunerecover.display.markdown import table

NAME, SAMPLES = "planning_passes", 192
DEPTH, SEED = 12, 0
BUDGETS: dict[str, Budget] = {
    "6 activations and 2 attentions": Budget(remove={"activation": 6, "attention": 2}),
    "20% of the MACs": Budget(macs=0.2),
    "33% of the MACs": Budget(macs=0.33),
    "3 blocks": Budget(remove={"block": 3}),
}
SEARCHES = ("greedy", "exact", "one_shot")


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the images that blocks see inside a `with` block, skipped ones apart."""
    seen = [0]
    own = Block.forward

    def forward(self: Block, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        seen[0] += len(x)
        return own(self, x, *args, **kwargs)

    Block.forward = forward
    try:
        yield seen
    finally:
        Block.forward = own


def row(budget: str, search: str) -> dict[str, Any]:
    """Plan once, and count."""
    model, batches = deit_tiny(), calibration(SAMPLES)
    started = time.process_time()
    with torch.inference_mode():
        for images, _ in batches:
            model(images)
    dense = time.process_time() - started
    with counted() as seen:
        started = time.process_time()
        plan = plan_depth(model, BUDGETS[budget], batches=batches, search=search)
        seconds = time.process_time() - started
    *_, divergence = plan.evidence["divergence"].values()  # of all together: the deepest unit comes last
    return {
        "budget": budget,
        "search": search,
        "passes": seen[0] / (DEPTH * SAMPLES),
        "passes_by_time": seconds / dense,
        "seconds": seconds,
        "divergence": divergence,
        "removed": {kind: len(names) for kind, names in plan.removed.items()},
        "seed": SEED,
    }


def main() -> None:
    """Make the rows that are missing, and write the page."""
    command_line = parser(__doc__)
    command_line.add_argument("--budgets", nargs="*", default=list(BUDGETS), choices=list(BUDGETS))
    command_line.add_argument("--searches", nargs="*", default=SEARCHES, choices=SEARCHES)
    options = command_line.parse_args()
    rows = stored(NAME)
    for budget in options.budgets:
        for search in options.searches:
            if not any(r["budget"] == budget and r["search"] == search for r in rows):
                rows.append(row(budget, search))
                save(rows)
    save(rows)


def save(rows: list[dict[str, Any]]) -> None:
    """Write JSON and Markdown."""
    commands = commands_so_far(NAME)
    write(NAME, {"commands": commands, "rows": rows, "samples": SAMPLES}, markdown(rows, commands))


def markdown(rows: list[dict[str, Any]], commands: list[str]) -> str:
    """Render a table."""
    cells = [
        (
            r["budget"],
            r["search"],
            f"{r['passes']:.1f}",
            f"{r['passes_by_time']:.0f}",
            f"{r['seconds']:.0f}",
            f"{r['divergence']:.3f}",
            ", ".join(f"{count} {kind}" for kind, count in r["removed"].items()),
        )
        for r in rows
    ]
    head = ("budget", "search", "passes", "passes by time", "seconds", "divergence", "removed")
    said = f"DeiT-Tiny, {SAMPLES} training images of tiny_imagenet. A pass: every block on every image once."
    return "\n".join(["# What planning in depth costs", "", *made_by(commands), said, "", table(head, cells), ""])


if __name__ == "__main__":
    main()
