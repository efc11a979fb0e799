"""BoundaryDPT against its peers: real DeiT-Tiny on the 200 classes of tiny_imagenet, at three latency budgets.

    PRUNERECOVER_DATA=... python benchmarks/boundary_dpt.py
    PRUNERECOVER_DATA=... python benchmarks/boundary_dpt.py --methods e f --budgets 0.2

Every method takes the least removal whose median interleaved CPU latency share meets the budget within 2 points (see
`boundary_methods.py`), is scored on all 5,000 validation images, recovered for one epoch of 1,000 training images with
distillation, and scored again. Resumable: rows that are in the results, and trials that are in the trial file, are not
made again. The longest step, a search, takes about half an hour on a core.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from boundary_figure import plot_curve
from boundary_methods import IMAGES, METHODS, SLACK, WIDTH, isomorphic_width, plans_of, pruned
from real import CHECKPOINTS, RESULTS, commands_so_far, deit_tiny, packed, unpacked, write
from rich.console import Console
from tiny_imagenet import hits, recover
from torch import nn

from prunerecover import Plan
from prunerecover.latency import latency_ratio
from prunerecover.macs import count_macs
from prunerecover.statistics import paired_difference, wilson_interval

NAME = "boundary_dpt"
BUDGETS = (0.20, 0.33, 0.50)
IMAGES_TO_RECOVER, SEED = 1000, 1
PLANS = CHECKPOINTS / "boundary_dpt_plans"
console = Console()


def main() -> None:
    """Make the rows that are missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--methods", nargs="*", default=[m.split()[0] for m in METHODS], help="letters, such as a d1 e")
    parser.add_argument("--budgets", nargs="*", type=float, default=BUDGETS)
    options = parser.parse_args()
    rows = stored()
    if not any(row["method"] == "dense" for row in rows):
        whole = {"latency_share": 1.0, "macs_share": 1.0, "removed": {}}
        rows.append({**scored("dense", 0.0, "prune_only", deit_tiny()), **whole})
        save(rows)
    for budget in options.budgets:
        for method in METHODS:
            if method.split()[0] in options.methods and not done(rows, method, budget):
                rows += measured(method, budget, rows)
                save(rows)


def measured(method: str, budget: float, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Prune by one method, score, recover and score again; a removal that has been measured is not measured again."""
    console.print(f"{method}, {budget:.0%}: {time.strftime('%H:%M:%S')}")
    started = time.perf_counter()
    plan = None if method == WIDTH else found(method, budget)
    network = isomorphic_width(budget) if plan is None else pruned(plan)
    seconds = time.perf_counter() - started
    removed = {} if plan is None else {kind: list(names) for kind, names in plan.removed.items()}
    known = [row for row in rows if row["method"] == method and row["removed"] == removed]
    if plan is not None and known:
        return [{**row, "budget": budget, "planning_seconds": seconds} for row in known[:2]]
    shares = shares_of(network if plan is None else pruned(plan, merged=True))
    about = {**shares, "removed": removed, "planning_seconds": seconds}
    pruned_only = {**scored(method, budget, "prune_only", network), **about}
    recover(network, IMAGES_TO_RECOVER, SEED)
    return [pruned_only, {**scored(method, budget, "recovered", network), **about}]


def found(method: str, budget: float) -> Plan:
    """Return a method's plan: that of an earlier run, if there is one."""
    path = PLANS / f"{method.split()[0]}-{budget:.2f}.json"
    if path.is_file():
        return Plan.load(path)
    plan = plans_of(method, budget, found)
    plan.save(path)
    return plan


def shares_of(network: nn.Module) -> dict[str, float]:
    """Return what is left of the latency and of the MACs of the dense model."""
    time_left = latency_ratio(deit_tiny(), network, IMAGES, pairs=20, warmup=3).ratio
    macs = count_macs(network, IMAGES) / count_macs(deit_tiny(), IMAGES)
    return {"latency_share": time_left.value, "macs_share": macs}


def scored(method: str, budget: float, stage: str, network: nn.Module) -> dict[str, Any]:
    """Score a network on all validation images."""
    values = hits(network)
    interval = wilson_interval(int(values.sum()), len(values))
    return {
        "method": method,
        "budget": budget,
        "stage": stage,
        "top1": 100 * interval.value,
        "ci_low": 100 * interval.low,
        "ci_high": 100 * interval.high,
        "n": len(values),
        "seed": SEED,
        "hits": packed(values),
    }


def stored() -> list[dict[str, Any]]:
    """Return the rows of earlier runs."""
    path = RESULTS / f"{NAME}.json"
    return json.loads(path.read_text())["rows"] if path.is_file() else []


def done(rows: list[dict[str, Any]], method: str, budget: float) -> bool:
    """Whether a method's rows are there."""
    return any(row["method"] == method and row["budget"] == budget for row in rows)


def save(rows: list[dict[str, Any]]) -> None:
    """Write JSON, Markdown and the curve."""
    write(NAME, {"commands": commands_so_far(NAME), "rows": rows}, markdown(rows))
    plot_curve(rows).savefig(RESULTS / f"{NAME}.png", dpi=130, bbox_inches="tight")


def ahead(rows: list[dict[str, Any]], row: dict[str, Any]) -> str:
    """Return by how much (e) is ahead on the same images, with the paired 95% interval."""
    same = [r for r in rows if r["method"] == "e ours" and (r["budget"], r["stage"]) == (row["budget"], row["stage"])]
    if not same or same[0] is row:
        return ""
    ours, theirs = (unpacked(r["hits"], r["n"]) for r in (same[0], row))
    difference = paired_difference(theirs, ours, seed=0)
    return f"{100 * difference.value:+.1f} ({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"


def markdown(rows: list[dict[str, Any]]) -> str:
    """Render the rows, by budget and stage."""
    dense = next(row for row in rows if row["method"] == "dense")
    lines = [
        "# BoundaryDPT against its peers: DeiT-Tiny on tiny_imagenet, 200 classes, 5,000 validation images",
        "",
        "`python benchmarks/boundary_dpt.py`",
        "",
        f"Dense: {dense['top1']:.2f}. What each method is: `benchmarks/boundary_methods.py`. Recovered: one epoch of "
        f"{IMAGES_TO_RECOVER:,} training images with distillation, the same for all. The published recovery takes "
        "hundreds of epochs of ImageNet, without which its identities hardly recover.",
        "",
        f"![Accuracy over latency, recovered]({NAME}.png)",
    ]
    for budget in sorted({row["budget"] for row in rows} - {0.0}):
        lines += [
            "",
            f"## About {budget:.0%} of the latency removed",
            "",
            "Removed: attentions, activations, blocks.",
            "",
            "| method | stage | latency share | MACs share | removed | top-1 (95%) | ours ahead by |",
            "|---|---|---|---|---|---|---|",
        ]
        chosen = sorted((row for row in rows if row["budget"] == budget), key=lambda r: (r["stage"], r["method"]))
        for row in chosen:
            counts = [str(len(row["removed"].get(kind, ()))) for kind in ("attention", "activation", "block")]
            top1 = f"{row['top1']:.2f} ({row['ci_low']:.2f}-{row['ci_high']:.2f})"
            missed = "" if row["latency_share"] <= 1 - budget + SLACK else " (not met)"
            shares = f"{row['latency_share']:.3f}{missed} | {row['macs_share']:.3f}"
            name = f"{row['method']} | {row['stage']}"
            lines.append(f"| {name} | {shares} | {', '.join(counts)} | {top1} | {ahead(rows, row)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
