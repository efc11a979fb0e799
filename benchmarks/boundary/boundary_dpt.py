"""BoundaryDPT against published methods: real DeiT-Tiny on the 200 classes of tiny_imagenet, three latency budgets.

    PRUNERECOVER_DATA=... python -m benchmarks.boundary.boundary_dpt
    PRUNERECOVER_DATA=... python -m benchmarks.boundary.boundary_dpt --budgets 0.2 --methods 'a attentions alone'

Every method takes the least removal whose median interleaved CPU latency share meets the budget within 2 points (see
`boundary_methods.py`), is scored on all 5,000 validation images, recovered for one epoch of 1,000 training images with
distillation, and scored again. Plans and short runs are kept. The longest step, a search, takes about half an hour on a
core. Planning measures latency: use an otherwise idle machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from matplotlib.figure import Figure as Picture

from benchmarks.boundary.boundary_methods import (
    IMAGES,
    METHODS,
    OURS,
    PAIRS,
    SLACK,
    WIDTH,
    isomorphic,
    isomorphic_ratio,
    plans_of,
    pruned,
    removed_by,
    removed_by_width,
)
from benchmarks.data.real import deit_tiny
from benchmarks.data.tiny_imagenet import hits, recover
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.curves import draw_curves
from benchmarks.runner.page import Column, Line, Table, ahead, counts, figure, text
from benchmarks.runner.plans import kept, removed, saved_plan
from benchmarks.runner.rows import CHECKPOINTS, Figure, Row
from prunerecover import Plan
from prunerecover.cost.macs import count_macs
from prunerecover.display.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, add_legend, new_figure

BUDGETS, STAGES = (0.20, 0.33, 0.50), ("prune_only", "recovered")
IMAGES_TO_RECOVER, SEED = 1000, 1
PLANS = CHECKPOINTS / "boundary_dpt_plans"
COLORS, MARKERS = (ORANGE, GREEN, GREY, BLACK, VERMILION, PURPLE, SKY, BLACK), "osD^vPX*"


def plan_of(method: str, budget: float) -> Plan:
    """Return a method's plan."""
    return saved_plan(_name(method, budget), lambda: plans_of(method, budget, plan_of), PLANS)


def ratio_of(budget: float) -> float:
    """Return the width method's removed share of channels."""
    return kept(PLANS / f"{_name(WIDTH, budget)}.pt", lambda: isomorphic_ratio(budget))


def _name(method: str, budget: float) -> str:
    return f"{method.split()[0]}-{budget:.2f}"


def measure(budget: float, method: str) -> Iterator[dict[str, Any]]:
    """Score a method's network before and after recovery."""
    started = time.perf_counter()
    if method == "dense":
        notes: dict[str, Any] = {"latency_share": 1.0, "removed": {}}
        make = deit_tiny
    elif method == WIDTH:
        notes = {"latency_share": 1 - removed_by_width(ratio_of(budget)), "removed": {}}
        make = partial(isomorphic, ratio_of(budget))
    else:
        plan = plan_of(method, budget)
        notes, make = {"latency_share": 1 - removed_by(plan), "removed": removed(plan)}, partial(pruned, plan)
    network = make()
    notes |= {"macs_share": count_macs(network, IMAGES) / count_macs(deit_tiny(), IMAGES), "seed": SEED}
    notes["planning_seconds"] = time.perf_counter() - started
    for stage in STAGES[: 1 if method == "dense" else 2]:
        network = recover(network, IMAGES_TO_RECOVER, SEED) if stage == "recovered" else network
        yield {"stage": stage, "top1": Figure.of(hits(network)), **notes}


def latency(line: Line) -> str:
    """Return the share of the latency, with a note if the budget is not met."""
    share, budget = line.first["latency_share"], line.first.budget
    return f"{share:.3f}" + ("" if share <= 1 - budget + SLACK else " (not met)")


def picture(rows: Sequence[Row]) -> Picture:
    """Draw top-1 after recovery over the remaining latency."""
    drawn, axes = new_figure(7.6, 4.6)
    (dense,) = (row.figures["top1"].value for row in rows if row.method == "dense")
    others = [method for method in sorted(METHODS) if method != OURS]
    styles = {m: (m.partition(" ")[2], c, k) for m, c, k in zip(others, COLORS, MARKERS, strict=True)}
    styles[OURS] = (OURS.partition(" ")[2], BLUE, "o")
    shown = [row for row in rows if row["stage"] == "recovered"]
    draw_curves(axes, shown, lambda row: float(row["latency_share"]), styles, OURS, dense)
    axes.set_xlabel("latency, as a share of the dense model's")
    add_legend(drawn, *axes.get_legend_handles_labels(), "lower right")
    return drawn


SHOWN = [text("method"), text("stage"), figure("top1", "top-1 (95%)", 2, 100)]
BENCHMARK = Benchmark(
    title="BoundaryDPT against its peers: DeiT-Tiny on tiny_imagenet, 200 classes, 5,000 validation images",
    text=f"""What each method is: `benchmarks/boundary/boundary_methods.py`. Recovered: one epoch of
    {IMAGES_TO_RECOVER:,} training images with distillation, the same for all. The published recovery takes hundreds of
    epochs of ImageNet, without which its identities hardly recover. Latency shares are medians of {PAIRS} interleaved
    pairs on one thread, good to about 1.5 points. Removed: attentions, activations, blocks. Ahead by: points on the
    same images, paired, with their 95% interval.""",
    measure=measure,
    axes={"budget": Axis(BUDGETS, open=True), "method": Axis(METHODS)},
    references=[{"method": "dense", "budget": 0.0}],
    also=("stage",),
    tables=(
        Table(SHOWN, where=lambda row: row.method == "dense"),
        Table(
            [
                text("method"),
                text("stage"),
                Column("latency share", latency),
                text("macs_share", "MACs share", "{:.3f}"),
                counts("removed", "removed", ("attention", "activation", "block")),
                SHOWN[2],
                ahead("top1", "default ahead by", 1, 100, same=("stage",), method=OURS),
            ],
            title="About {budget:.0%} of the latency removed",
            by=("budget",),
            line=("stage", "method"),
            where=lambda row: row.budget > 0,
        ),
    ),
    pictures={"": picture},
)

if __name__ == "__main__":
    BENCHMARK.main()
