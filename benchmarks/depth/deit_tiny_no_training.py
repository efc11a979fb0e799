"""Accuracy with calibrated replacements and no training: real DeiT-Tiny, all 1,000 images of imagenet_sample.

    PRUNERECOVER_DATA=... python -m benchmarks.depth.deit_tiny_no_training

Calibration is without labels: half the samples are photos (coco128), half are training images of tiny_imagenet. The
reported images are not untouched: the accuracy on imagenet_sample was seen while the fits and the calibration mix were
developed, and greedy became the default after one-shot gave less there. Take the figures as optimistic. "identity"
removes the same units as the search beside it, with identities in their place as in the published method.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import torch

from benchmarks.data.real import correct, deit_tiny, image_data, photos
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Line, Table, figure, text
from benchmarks.runner.plans import pruned, removed
from benchmarks.runner.rows import Figure
from prunerecover import Plan, plan_depth
from prunerecover.sites.find import find_units

REMOVALS = {"3 attentions": {"attention": 3}, "3 activations": {"activation": 3}, "6 activations": {"activation": 6}}
SAMPLES, IDENTITY = 192, "identity"


@cache
def batches() -> list[torch.Tensor]:
    """Return images in seeded order, in batches of 32."""
    half = SAMPLES // 2
    tiny = image_data("tiny_imagenet", augment=False, limit_train=half, batch_size=half, num_workers=0, seed=1)
    tiny.setup("fit")
    small = next(iter(tiny.train_dataloader()))[0]
    images = torch.cat([torch.cat([photos("train2017"), photos("val2017")])[:half], small])
    return list(images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))].split(32))


@cache
def loader() -> list[Any]:
    """Return the scored images in batches."""
    data = image_data("imagenet_sample", batch_size=100, num_workers=0, test_split="validation")
    data.setup("test")
    return list(data.test_dataloader())


@cache
def planned(search: str, budget: str) -> tuple[Plan, float]:
    """Return the plan of a search, and its seconds."""
    started = time.perf_counter()
    plan = plan_depth(deit_tiny(), remove=REMOVALS[budget], batches=batches(), search=search)
    return plan, time.perf_counter() - started


def with_identities(plan: Plan) -> Plan:
    """Plan the removal of exactly the units of another plan, with identities in their place."""
    model, chosen = deit_tiny(), {name for names in plan.removed.values() for name in names}
    others = [unit.name for unit in find_units(model) if unit.name not in chosen]
    counts = {kind: len(names) for kind, names in plan.removed.items()}
    return plan_depth(model, remove=counts, batches=batches()[:1], replace=IDENTITY, ignore=others)


def measure(search: str, budget: str, method: str) -> dict[str, Any]:
    """Plan, apply to a fresh model and score."""
    plan, seconds = (Plan(), None) if method == "dense" else planned(search, budget)
    if method == IDENTITY:
        plan, seconds = with_identities(plan), None
    return {
        "top1": Figure.of(correct(pruned(deit_tiny(), plan, merged=False), loader()).double()),
        "removed": removed(plan),
        "leaves": sorted({edit.leaves for edit in plan.edits}),
        "seconds": seconds,
    }


def units(line: Line) -> str:
    """Return the names of the removed units."""
    return ", ".join(name for names in line.first["removed"].values() for name in names) or "nothing"


BENCHMARK = Benchmark(
    name="deit_tiny_no_training",
    doc=__doc__,
    title="DeiT-Tiny without training, 1,000 images of imagenet_sample",
    text="""Units by a greedy search or ranked once (one_shot), with what fits best in their place, or identities. The
    images were seen during development (see the script), so the figures are optimistic.""",
    measure=measure,
    axes={
        "search": Axis(("greedy", "one_shot"), "--search"),
        "budget": Axis(tuple(REMOVALS), "--removed"),
        "method": Axis(("fitted", IDENTITY)),
    },
    references=[{"search": "", "budget": "", "method": "dense"}],
    threads=0,
    tables=(
        Table(
            [
                text("search"),
                text("method"),
                Column("removed", units),
                figure("top1", "top-1 (95% interval)", 1, 100),
                Column("left in their place", lambda line: ", ".join(line.first["leaves"])),
                text("seconds", "planning, s", "{:.0f}"),
            ],
            line=("search", "budget", "method"),
        ),
    ),
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
