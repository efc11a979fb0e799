"""Depth alone on networks found in the graph, with fitted replacements and without, before any training.

    PRUNERECOVER_DATA=... python -m benchmarks.depth.fitted_depth

plans for networks of CIFAR-10 on unlabelled training images, and scores the pruned networks on the 10,000 test JPEGs.
Missing weights are trained first: `python -m benchmarks.width.cifar_models --models ...`. A row takes 1 to 10 minutes
on a core.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.data.cifar import EXAMPLE, batches, hits
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, ahead, counts, figure, mean, text
from benchmarks.runner.plans import pruned, saved_plan, shares
from benchmarks.runner.rows import CHECKPOINTS, Figure
from benchmarks.width.cifar_models import load
from prunerecover import Budget, Plan, plan_depth
from prunerecover.cost.latency import latency_ratio
from prunerecover.model.batches import as_inputs

SAMPLES, CALIBRATED = 64, 256  # samples of a batch, and of all batches
OURS, BARE = "fitted", "nothing fitted"
METHODS: dict[str, dict[str, Any]] = {BARE: {"replace": "identity"}, OURS: {}}
BUDGETS = {
    "33% of the latency": Budget(latency=0.33),
    "20% of the MACs": Budget(macs=0.2),
    "33% of the MACs": Budget(macs=0.33),
}
LATENCY, SMALL, _ = BUDGETS
MODELS = ("ResNet-56", "ConvNeXt", "MobileNetV2")


def measure(model: str, seed: int, budget: str, method: str) -> dict[str, Any]:
    """Plan, and score the pruned network."""
    dense, started = load(model), time.perf_counter()
    if method == "dense":
        return {"top1": Figure.of(hits(dense), seed)}

    def planned() -> Plan:
        given = batches(CALIBRATED, seed, SAMPLES)
        return plan_depth(dense, BUDGETS[budget], batches=given, seed=seed, **METHODS[method])

    plan = saved_plan(f"{model}-{budget}-{method}-{seed}", planned, CHECKPOINTS / "fitted_depth")
    seconds, left = time.perf_counter() - started, pruned(dense, plan)
    leaves = [edit.leaves for edit in plan.edits if edit.op == "bypass"]
    return {
        "top1": Figure.of(hits(left), seed),
        **shares(dense, left, EXAMPLE),
        "latency_share": latency_ratio(dense, left, as_inputs(batches(SAMPLES, seed, SAMPLES)[0])).ratio.value,
        "seconds": seconds,
        "removed": {kind: len(names) for kind, names in plan.removed.items()},
        "leaves": {one: leaves.count(one) for one in sorted(set(leaves))},
    }


BENCHMARK = Benchmark(
    title="Fitted stand-ins in depth, on the graph",
    text=f"""CIFAR-10, planned with `plan_depth` on {CALIBRATED} unlabelled training images, untrained afterwards. Top-1
    in percent on the 10,000 test JPEGs. Ahead by: over nothing fitted, on the same images, with the paired 95%
    interval. Nothing fitted: `replace="identity"`. ConvNeXt and MobileNetV2 are small ones that
    `benchmarks.width.cifar_models` trains for some minutes.""",
    measure=measure,
    axes={
        "model": Axis(MODELS),
        "seed": Axis((0,), open=True),
        "budget": Axis(tuple(BUDGETS)),
        "method": Axis(tuple(METHODS)),
    },
    references=[{"model": model, "seed": 0, "budget": "", "method": "dense"} for model in MODELS],
    skipped=lambda model, seed, budget, method: budget == (SMALL if model == "ResNet-56" else LATENCY),
    tables=(
        Table(
            [
                text("model", "network"),
                text("budget", "out"),
                text("method", "in the place of units"),
                figure("top1", "top-1", 1, 100, ends=False),
                mean("macs_share", "MACs left"),
                mean("latency_share", "latency left"),
                counts("leaves", "units leave"),
                ahead("top1", "ahead by", 1, 100, same=("model", "budget"), turned=True, method=BARE),
            ],
            line=("model", "budget", "method"),
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
