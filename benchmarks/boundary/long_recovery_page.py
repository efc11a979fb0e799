"""The page of `long_recovery.py`: a table per share of the MACs, and where the lines meet."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data.real import ahead_by, made_by, unpacked
from prunerecover.cost.statistics import paired_difference
from prunerecover.display.markdown import table

Row = dict[str, Any]
NAMES = {
    "dense": "dense",
    "book": "BoundaryDPT as published",
    "default": "DepthPrune default",
    "boundary": "plan_boundary default",
}
ORDER = ("untrained", "a tenth", "whole")
KINDS = ("attention", "activation", "mlp", "block")
COLUMNS = ("recovery", "method", "removed", "MACs share", "seeds", "top-1 (95%)", "ahead of the published method by")


def markdown(rows: list[Row], commands: list[str], settings: Row) -> str:
    """Render the rows, by share, recovery and method."""
    dense = next(row for row in rows if row["method"] == "dense" and row["stage"] == "untrained")
    lines = [
        "# Recovery as long as training: a small ViT on CIFAR-10's JPEGs, 10,000 test images",
        "",
        *made_by(commands),
        f"A ViT of 12 blocks (width 64, mlp_ratio 4, convolutional stem) trained here for {settings['epochs']} epochs "
        f"of {settings['trained']:,} training images: {dense['top1']:.2f} on the test images. Recovery: a tenth is "
        f"{settings['tenth']} epochs, the whole {settings['epochs']}, as long as training; each is a schedule of its "
        "own, warm-up and cosine, with AdamW, random crops and flips, the same for all methods, by the labels alone "
        "unless the dense network is named as a teacher. Merged before they are scored. Removed: attentions, "
        f"activations, MLPs, blocks. Short runs behind a map: {settings['short']} epochs, scored on "
        f"{settings['held_out']:,} held-out training images. Test images chose nothing. Ahead by: points on the same "
        "images, paired; with several seeds (of the recovery alone) the mean over them. Intervals are over images: "
        "they do not hold what another dense network changes. MACs shares differ by less than an activation saves.",
    ]
    again = _group(rows, "dense", 0.0, "whole", False)
    if again:
        lines += [
            "",
            f"The dense network after as much training again, by the same schedule: {_top1(again)}. Recovered networks "
            "are to be read beside this, too: they have been trained for as long.",
        ]
    pruned = [row for row in rows if row["method"] != "dense"]
    for distilled in sorted({row["distilled"] for row in pruned}):
        for budget in sorted({row["budget"] for row in pruned if row["distilled"] == distilled}):
            teacher = ", the dense network as a teacher" if distilled else ""
            lines += ["", f"## {budget:.0%} of the MACs out{teacher}", ""]
            lines.append(table(COLUMNS, _cells(pruned, budget, distilled)))
    return "\n".join([*lines, *_curves(pruned)])


def _cells(rows: list[Row], budget: float, distilled: bool) -> list[tuple[str, ...]]:
    cells: list[tuple[str, ...]] = []
    for stage in ORDER:
        distils = distilled and stage != "untrained"
        book = _group(rows, "book", budget, stage, distils)
        for method, name in NAMES.items():
            if group := _group(rows, method, budget, stage, distils):
                removed = ", ".join(str(len(group[0]["removed"].get(kind, ()))) for kind in KINDS)
                share, seeds = f"{group[0]['macs_share']:.3f}", ", ".join(str(row["seed"]) for row in group)
                cells.append((stage, name, removed, share, seeds, _top1(group), _ahead(group, book)))
    return cells


def _group(rows: list[Row], method: str, budget: float, stage: str, distilled: bool) -> list[Row]:
    """Return the rows of all seeds, in their order."""
    asked = {"method": method, "budget": budget, "stage": stage, "distilled": distilled}
    return sorted((r for r in rows if all(r[key] == value for key, value in asked.items())), key=lambda r: r["seed"])


def _hits(rows: list[Row]) -> NDArray[np.float64]:
    right: NDArray[np.float64] = np.mean([unpacked(row["hits"], row["n"]) for row in rows], axis=0)
    return right


def _top1(rows: list[Row]) -> str:
    if len(rows) == 1:
        return f"{rows[0]['top1']:.2f} ({rows[0]['ci_low']:.2f}-{rows[0]['ci_high']:.2f})"
    found = paired_difference(np.zeros(rows[0]["n"]), _hits(rows), seed=0)
    return f"{100 * found.value:.2f} ({100 * found.low:.2f}-{100 * found.high:.2f})"


def _ahead(rows: list[Row], book: list[Row]) -> str:
    """Return by how much rows are ahead of the published method's, of the seeds that both have."""
    both = {row["seed"] for row in rows} & {row["seed"] for row in book}
    if not both or rows[0]["method"] == "book":
        return ""
    ours, theirs = ([row for row in group if row["seed"] in both] for group in (rows, book))
    return ahead_by(_hits(ours), _hits(theirs))


def _curves(rows: list[Row]) -> list[str]:
    """Return lines of Markdown: held-out accuracy on the way through the whole recovery."""
    whole = [row for row in rows if row["held_out"] and not row["distilled"]]
    if not whole:
        return []
    whole.sort(key=lambda row: (row["budget"], row["seed"], list(NAMES).index(row["method"])))
    epochs = [f"{epoch:.0f}" for epoch, _ in whole[0]["held_out"]]
    cells = [
        (f"{row['budget']:.0%}", NAMES[row["method"]], row["seed"], *(f"{score:.1f}" for _, score in row["held_out"]))
        for row in whole
    ]
    head = ("MACs out", "method", "seed", *epochs)
    title = "## Held-out accuracy during the whole recovery, after so many epochs"
    return ["", title, "", table(head, cells)]
