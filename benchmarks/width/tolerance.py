"""One tolerance for all networks, against a tolerance tuned for each: how much goes, and what is left.

    PRUNERECOVER_DATA=... python -m benchmarks.width.tolerance

Tolerance of Difference by the book on real ResNet-20 and ResNet-56 and on the ConvNeXt of `cifar_models.py`: the
published way, one tolerance for every network, and the tolerance that removes 30% of each network's MACs. Scores come
from 256 training images; top-1 is that of all 10,000 test JPEGs after BatchNorm recalibration. 10 minutes on a core.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.progress import track

from benchmarks.data.cifar import batches, hits
from benchmarks.data.real import command, parser, write
from benchmarks.width.cifar_models import MODELS, load
from benchmarks.width.width_peers import SCORED, planner, removed
from prunerecover import Budget, Plan, apply_plan, recalibrate_batchnorm
from prunerecover.display.markdown import table
from prunerecover.width.arguments import WidthRule

NAME, SEED = "tolerance", 0
TOLERANCES, TUNED = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5), 0.3
Row = dict[str, Any]


def row_of(model: str, plan: Plan, tolerance: float | None) -> Row:
    """Narrow a network by a plan and score it."""
    network = load(model)
    apply_plan(network, plan)
    recalibrate_batchnorm(network, [images for images, _ in batches(4 * SCORED, SEED + 1)])
    return {
        "model": model,
        "tolerance": tolerance,
        "macs_removed": removed(network, model, "macs"),
        "top1": 100 * float(hits(network).mean()),
        "seed": SEED,
    }


def rows_of(model: str) -> list[Row]:
    """Return the rows of one network: each tolerance, and the tuned one, which has none."""
    rule = WidthRule(allocation="tolerance", replace="zero")
    plans = {tolerance: planner(model, SEED).plan(rule=replace(rule, tolerance=tolerance)) for tolerance in TOLERANCES}
    tuned = planner(model, SEED).plan(Budget(macs=TUNED), rule)
    return [*(row_of(model, plan, tolerance) for tolerance, plan in plans.items()), row_of(model, tuned, None)]


def main() -> None:
    """Measure and write."""
    parser(__doc__).parse_args()
    rows = [row for model in track(MODELS, "networks") for row in rows_of(model)]
    dense = {model: 100 * float(hits(load(model)).mean()) for model in MODELS}
    write(NAME, {"rows": rows, "dense": dense}, markdown(rows, dense))


def markdown(rows: list[Row], dense: dict[str, float]) -> str:
    """Render a table of networks by tolerance."""
    lines = ["# One tolerance for all networks, and one tuned for each", "", f"`{command()}`", ""]
    cells = []
    for tolerance in (*TOLERANCES, None):
        name = f"tuned to {TUNED:.0%} of the MACs" if tolerance is None else f"{tolerance:g}"
        found = {row["model"]: row for row in rows if row["tolerance"] == tolerance}
        left = (f"-{found[model]['macs_removed']:.0%} MACs, {found[model]['top1']:.1f}" for model in MODELS)
        cells.append((name, *left))
    lines += [table(("tolerance", *(f"{model} (dense {dense[model]:.1f})" for model in MODELS)), cells)]
    return "\n".join([*lines, "", "Share of the MACs removed, and top-1 in percent, 10,000 test JPEGs."])


if __name__ == "__main__":
    main()
