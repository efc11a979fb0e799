"""BoundaryDPT against its peers: real DeiT-Tiny on the 200 classes of tiny_imagenet, at three latency budgets.

    PRUNERECOVER_DATA=... python -m benchmarks.boundary.boundary_dpt
    PRUNERECOVER_DATA=... python -m benchmarks.boundary.boundary_dpt --methods e f --budgets 0.2

Every method takes the least removal whose median interleaved CPU latency share meets the budget within 2 points (see
`boundary_methods.py`), is scored on all 5,000 validation images, recovered for one epoch of 1,000 training images with
distillation, and scored again. Resumable: plans and rows that are in the results, and trials that are in the trial
file, are not made again. The longest step, a search, takes about half an hour on a core. Latency is measured while
planning, for which `--plan-only` is there: best on a machine that does nothing else.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from benchmarks.boundary.boundary_figure import OURS, plot_curve
from benchmarks.boundary.boundary_methods import (
    IMAGES,
    METHODS,
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
from benchmarks.data.real import (
    CHECKPOINTS,
    RESULTS,
    accuracy,
    ahead_by,
    commands_so_far,
    deit_tiny,
    kept_plan,
    made_by,
    parser,
    stored,
    unpacked,
    write,
)
from benchmarks.data.tiny_imagenet import hits, recover
from prunerecover import Plan
from prunerecover.cost.macs import count_macs
from prunerecover.display.markdown import table

NAME = "boundary_dpt"
BUDGETS = (0.20, 0.33, 0.50)
IMAGES_TO_RECOVER, SEED = 1000, 1
PLANS = CHECKPOINTS / "boundary_dpt_plans"
Row = dict[str, Any]
console = Console()


def main() -> None:
    """Make the plans that are missing, then the rows."""
    command_line = parser(__doc__)
    command_line.add_argument(
        "--methods", nargs="*", default=[m.split()[0] for m in METHODS], help="letters, such as a d1 e"
    )
    command_line.add_argument("--budgets", nargs="*", type=float, default=BUDGETS)
    command_line.add_argument("--plan-only", action="store_true", help="plan and time; nothing is recovered or scored")
    options = command_line.parse_args()
    rows, plans = stored(NAME), stored(NAME, "plans")
    wanted = [(m, budget) for budget in options.budgets for m in METHODS if m.split()[0] in options.methods]
    for method, budget in wanted:
        if of(plans, method, budget) is None:
            console.print(f"{time.strftime('%H:%M:%S')} planning {method}, {budget:.0%}")
            plans.append(planned(method, budget))
            save(rows, plans)
    if options.plan_only:
        return
    if of(rows, "dense", 0.0) is None:
        rows.append(scored("dense", 0.0, "prune_only", deit_tiny()))
    for method, budget in wanted:
        if of(rows, method, budget) is None:
            console.print(f"{time.strftime('%H:%M:%S')} recovering {method}, {budget:.0%}")
            rows += measured(method, budget, rows, plans)
            save(rows, plans)


def planned(method: str, budget: float) -> Row:
    """Decide what a method removes, and measure what is left of the dense model's latency and MACs."""
    known = path_of(method, budget).is_file()
    started = time.perf_counter()
    network = network_of(method, budget)
    seconds = time.perf_counter() - started
    removed = {} if method == WIDTH else {kind: list(names) for kind, names in found(method, budget).removed.items()}
    gone = removed_by_width(ratio_of(budget)) if method == WIDTH else removed_by(found(method, budget))
    return {
        "method": method,
        "budget": budget,
        "removed": removed,
        "latency_share": 1 - gone,
        "macs_share": count_macs(network, IMAGES) / count_macs(deit_tiny(), IMAGES),
        "planning_seconds": None if known else seconds,
    }


def measured(method: str, budget: float, rows: list[Row], plans: list[Row]) -> list[Row]:
    """Score what a method leaves, recover it and score it again; what has been measured is not measured again."""
    removed = of(plans, method, budget)["removed"]  # type: ignore[index]
    same = {p["budget"] for p in plans if p["method"] == method and removed and p["removed"] == removed}
    if known := [row for row in rows if row["method"] == method and row["budget"] in same]:
        return [{**row, "budget": budget} for row in known[:2]]
    network = network_of(method, budget, merged=False)
    pruned_only = scored(method, budget, "prune_only", network)
    recover(network, IMAGES_TO_RECOVER, SEED)
    return [pruned_only, scored(method, budget, "recovered", network)]


def network_of(method: str, budget: float, merged: bool = True) -> nn.Module:
    """Return what a method leaves of the dense network."""
    if method == WIDTH:
        return isomorphic(ratio_of(budget))
    return pruned(found(method, budget), merged)


def found(method: str, budget: float) -> Plan:
    """Return a method's plan: that of an earlier run, if there is one."""
    return kept_plan(path_of(method, budget), lambda: plans_of(method, budget, found))


def path_of(method: str, budget: float) -> Path:
    """Return where a method's plan is kept."""
    return PLANS / f"{method.split()[0]}-{budget:.2f}.json"


def ratio_of(budget: float) -> float:
    """Return the share of channels that the width method removes: that of an earlier run, if there is one."""
    path = path_of(WIDTH, budget)
    if not path.is_file():
        PLANS.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"ratio": isomorphic_ratio(budget)}))
    return float(json.loads(path.read_text())["ratio"])


def scored(method: str, budget: float, stage: str, network: nn.Module) -> Row:
    """Score a network on all validation images."""
    return {"method": method, "budget": budget, "stage": stage, "seed": SEED, **accuracy(hits(network))}


def of(entries: list[Row], method: str, budget: float) -> Row | None:
    """Return the first entry of a method at a budget."""
    return next((entry for entry in entries if (entry["method"], entry["budget"]) == (method, budget)), None)


def save(rows: list[Row], plans: list[Row]) -> None:
    """Write JSON, Markdown and the curve; every row says what its plan removes and leaves."""
    dense = {"latency_share": 1.0, "macs_share": 1.0, "removed": {}}
    told = [{**row, **(of(plans, row["method"], row["budget"]) or dense)} for row in rows]
    commands = commands_so_far(NAME)
    write(NAME, {"commands": commands, "plans": plans, "rows": told}, markdown(told, commands))
    plot_curve(told).savefig(RESULTS / f"{NAME}.png", dpi=130, bbox_inches="tight")


def ahead(rows: list[Row], row: Row) -> str:
    """Return by how much (e) is ahead on the same images, with the paired 95% interval."""
    same = [r for r in rows if r["method"] == OURS and (r["budget"], r["stage"]) == (row["budget"], row["stage"])]
    if not same or same[0] is row:
        return ""
    return ahead_by(*(unpacked(r["hits"], r["n"]) for r in (same[0], row)))


COLUMNS = ("method", "stage", "latency share", "MACs share", "removed", "top-1 (95%)", "default ahead by")


def markdown(rows: list[Row], commands: list[str]) -> str:
    """Render the rows, by budget and stage."""
    dense = next(row for row in rows if row["method"] == "dense")
    lines = [
        "# BoundaryDPT against its peers: DeiT-Tiny on tiny_imagenet, 200 classes, 5,000 validation images",
        "",
        *made_by(commands),
        f"Dense: {dense['top1']:.2f}. What each method is: `benchmarks/boundary/boundary_methods.py`. Recovered: one "
        f"epoch of {IMAGES_TO_RECOVER:,} training images with distillation, the same for all. The published recovery "
        "takes hundreds of epochs of ImageNet, without which its identities hardly recover. Latency shares are medians "
        f"of {PAIRS} interleaved pairs on one thread, good to about 1.5 points.",
        "",
        f"![Accuracy over latency, recovered]({NAME}.png)",
    ]
    for budget in sorted({row["budget"] for row in rows} - {0.0}):
        chosen = sorted((row for row in rows if row["budget"] == budget), key=lambda r: (r["stage"], r["method"]))
        lines += [
            "",
            f"## About {budget:.0%} of the latency removed",
            "",
            "Removed: attentions, activations, blocks.",
            "",
            table(COLUMNS, (_cells(rows, row) for row in chosen)),
        ]
    return "\n".join(lines)


def _cells(rows: list[Row], row: Row) -> tuple[str, ...]:
    missed = "" if row["latency_share"] <= 1 - row["budget"] + SLACK else " (not met)"
    return (
        row["method"],
        row["stage"],
        f"{row['latency_share']:.3f}{missed}",
        f"{row['macs_share']:.3f}",
        ", ".join(str(len(row["removed"].get(kind, ()))) for kind in ("attention", "activation", "block")),
        f"{row['top1']:.2f} ({row['ci_low']:.2f}-{row['ci_high']:.2f})",
        ahead(rows, row),
    )


if __name__ == "__main__":
    main()
