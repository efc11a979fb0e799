"""Whether time follows MACs: DeiT-Tiny, batch 8, attention, activation and both removed from 3, 6 and 9 blocks.

    PRUNERECOVER_DATA=... python -m benchmarks.depth.time_follows_macs

Time share and MACs share are of the whole model, pruned and merged against dense; each is the median of
40 interleaved pairs.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.data.real import deit_tiny, parser, write
from prunerecover import apply_plan, merge, plan_depth
from prunerecover.cost.latency import latency_ratio
from prunerecover.cost.macs import count_macs
from prunerecover.display.markdown import table

PAIRS = 40
KINDS = {"attention": ("attention",), "activation": ("activation",), "both": ("attention", "activation")}


def row(kind: str, k: int, images: torch.Tensor) -> dict[str, Any]:
    """Remove k units of each kind at random (cost does not depend on which), merge, and time."""
    dense, pruned = deit_tiny(), deit_tiny()
    remove = {name: k for name in KINDS[kind]}
    apply_plan(pruned, plan_depth(pruned, remove=remove, batches=[images], importance="random", replace="zero"))
    merge(pruned)
    macs = count_macs(pruned, images) / count_macs(dense, images)
    time = latency_ratio(dense, pruned, images, pairs=PAIRS, warmup=5, threads=torch.get_num_threads())
    return {
        "kind": kind,
        "k": k,
        "macs_share": macs,
        "time_share": time.ratio.value,
        "ci_low": time.ratio.low,
        "ci_high": time.ratio.high,
        "time_over_macs": time.ratio.value / macs,
        "pairs": PAIRS,
        "threads": time.threads,
    }


def main() -> None:
    """Measure nine configurations and write them."""
    parser(__doc__).parse_args()
    images = torch.randn(8, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    rows = [row(kind, k, images) for kind in KINDS for k in (3, 6, 9)]
    write("time_follows_macs", {"rows": rows}, markdown(rows))


def markdown(measured: list[dict[str, Any]]) -> str:
    """Render the rows."""
    rows = [
        (
            row["kind"],
            row["k"],
            f"{row['macs_share']:.3f}",
            f"{row['time_share']:.3f} ({row['ci_low']:.3f}-{row['ci_high']:.3f})",
            f"{row['time_over_macs']:.3f}",
        )
        for row in measured
    ]
    lines = [
        "# Time follows MACs: DeiT-Tiny, batch 8, CPU",
        "",
        "`python -m benchmarks.depth.time_follows_macs`",
        "",
        table(("removed", "blocks", "MACs share", "time share (95% interval)", "time / MACs"), rows),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
