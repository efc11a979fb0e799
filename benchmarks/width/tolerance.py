"""A single tolerance for all networks, against a tolerance tuned for each: removed shares, and accuracies.

    PRUNERECOVER_DATA=... python -m benchmarks.width.tolerance

Tolerance of Difference as published, on real ResNet-20 and ResNet-56 and on the ConvNeXt of `cifar_models.py`: with a
single tolerance for every network, and with the tolerance that removes 30% of each network's MACs. Scores are from 256
training images; top-1 is on all 10,000 test JPEGs after BatchNorm recalibration. 10 minutes on a core.
"""

from __future__ import annotations

from typing import Any

from benchmarks.data.cifar import batches, hits
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, across, figure, text
from benchmarks.runner.rows import Figure
from benchmarks.width.cifar_models import MODELS, load
from benchmarks.width.width_peers import SCORED, planner, removed
from prunerecover import Budget, apply_plan, recalibrate_batchnorm
from prunerecover.width.arguments import WidthRule

SEED, TUNED = 0, "tuned to 30% of the MACs"
TOLERANCES = {f"{tolerance:g}": tolerance for tolerance in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)}


def measure(model: str, method: str) -> dict[str, Any]:
    """Narrow a network by a tolerance and score it."""
    network, plans = load(model), planner(model, SEED)
    if method == "dense":
        return {"top1": Figure.of(hits(network))}
    how: dict[str, Any] = {"allocation": "fair_pruner", "replace": "zero"}
    if method == TUNED:
        plan = plans.plan(Budget(macs=0.3), WidthRule(**how))
    else:
        plan = plans.plan(rule=WidthRule(**how, tolerance=TOLERANCES[method]))
    apply_plan(network, plan)
    recalibrate_batchnorm(network, [images for images, _ in batches(4 * SCORED, SEED + 1)])
    return {"top1": Figure.of(hits(network)), "macs_removed": removed(network, model, "macs")}


BENCHMARK = Benchmark(
    name="tolerance",
    doc=__doc__,
    title="One tolerance for all networks, and one tuned for each",
    text="""Share of the MACs removed, and top-1 in percent, 10,000 test JPEGs.""",
    measure=measure,
    axes={"model": Axis(MODELS), "method": Axis(("dense", *TOLERANCES, TUNED), "--tolerances")},
    threads=0,
    tables=(
        Table(
            [
                text("method", "tolerance"),
                *across(
                    "model",
                    MODELS,
                    [text("macs_removed", "{}, MACs", "-{:.0%}"), figure("top1", "top-1", 1, 100, ends=False)],
                ),
            ]
        ),
    ),
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
