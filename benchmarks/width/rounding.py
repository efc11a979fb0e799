"""What round_to=8 does to the latency: plans at 30 and 50% of the MACs, rounded and not, against the dense network.

    PRUNERECOVER_DATA=... python -m benchmarks.width.rounding

One thread, interleaved pairs, processor time: each plan against the dense network, and the rounded network against the
one that is not. ResNet-56 and DeiT-Tiny have trained weights and are planned on training images; the networks of
torchvision have random weights and random images, which choose other units, but a latency depends on widths alone.
5 minutes on a core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models

from benchmarks.data import cifar, tiny_imagenet
from benchmarks.data.real import deit_tiny
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, figure, text
from benchmarks.runner.plans import pruned
from benchmarks.runner.rows import Figure
from benchmarks.width.cifar_models import load
from prunerecover import Budget, Plan
from prunerecover.cost.latency import LatencyRatio, latency_ratio
from prunerecover.cost.macs import count_macs
from prunerecover.model.copies import deep_copy
from prunerecover.plan.kinds import TRAITS
from prunerecover.session.session import Session
from prunerecover.width.arguments import WidthConfig, WidthRule
from prunerecover.width.planner import WidthPlanner

PAIRS, WARMUP, SEED = 30, 3, 0
MULTIPLE, SHARES = 8, (0.3, 0.5)
Images = tuple[Tensor, Tensor]


def at_random(build: Callable[..., nn.Module]) -> nn.Module:
    """Return a network of torchvision with random weights."""
    torch.manual_seed(SEED)
    return build(weights=None).eval()


def noise() -> list[Images]:
    """Return random images with random labels."""
    generator = torch.Generator().manual_seed(SEED)
    images = torch.randn(8, 3, 224, 224, generator=generator)
    return [(images, torch.randint(1000, (8,), generator=generator))]


def photos() -> list[Images]:
    """Return training images of tiny_imagenet."""
    images, labels = tiny_imagenet.calibration(16)[0]
    return [(images, labels)]


Model = tuple[Callable[[], nn.Module], Callable[[], list[Images]], Callable[[nn.Module, Any], Tensor], int]
MODELS: dict[str, Model] = {  # how it is made, what it is planned on and with which loss, and the samples of a pass
    "ResNet-56": (lambda: load("ResNet-56"), lambda: cifar.batches(64, SEED), cifar.cross_entropy, 8),
    "DeiT-Tiny": (deit_tiny, photos, tiny_imagenet.loss, 1),
    "ResNet-18": (partial(at_random, models.resnet18), noise, cifar.cross_entropy, 1),
    "MobileNetV2": (partial(at_random, models.mobilenet_v2), noise, cifar.cross_entropy, 2),
}


def measure(model: str) -> Iterator[dict[str, Any]]:
    """Plan a network with both settings at all shares, and time what is left."""
    build, batches, loss, samples = MODELS[model]
    dense, given = build(), batches()
    images = given[0][0][:samples]
    planner = WidthPlanner(Session(deep_copy(dense), given, loss=loss, seed=SEED), WidthConfig(loss=loss, seed=SEED))
    for share in SHARES:
        rules = {multiple: WidthRule(round_to=multiple, replace="zero") for multiple in (1, MULTIPLE)}
        plans = {multiple: planner.plan(Budget(macs=share), rule) for multiple, rule in rules.items()}
        networks = {multiple: pruned(dense, plan, merged=False) for multiple, plan in plans.items()}
        against = timed(networks[1], networks[MULTIPLE], images)
        for multiple, plan in plans.items():
            own, of = in_multiples(plan)
            found = timed(dense, networks[multiple], images)
            yield {
                "budget": share,
                "method": f"round_to={multiple}",
                "time": Figure.within(found.ratio, found.pairs),
                **({"against": Figure.within(against.ratio, against.pairs)} if multiple > 1 else {}),
                "batch": len(images),
                "multiples": f"{own} of {of}",
                "removed": 1 - count_macs(networks[multiple], images) / count_macs(dense, images),
                "ms": found.pruned_ms,
            }


def timed(one: nn.Module, other: nn.Module, images: Tensor) -> LatencyRatio:
    """Return the time of the other network as a share of the one's."""
    return latency_ratio(one, other, images, pairs=PAIRS, warmup=WARMUP, threads=1, seed=SEED)


def in_multiples(plan: Plan) -> tuple[int, int]:
    """Return how many groups of channels and neurons keep a multiple, and of how many that have so many units."""
    groups = [group for group in plan.kept_groups if not TRAITS[group.kind].composite and group.size >= MULTIPLE]
    return sum(group.kept % MULTIPLE == 0 for group in groups), len(groups)


BENCHMARK = Benchmark(
    name="rounding",
    doc=__doc__,
    title="Widths in multiples of 8",
    text=f"""Planned in width with default arguments but `round_to`, and without the fit of what is left. Widths: of
    groups of channels and neurons; heads are not rounded. Time: of a pass on one thread, as a share of the dense
    network's, the median of {PAIRS} interleaved pairs with its 95% interval, in processor time; rounded / not: the same
    of the two pruned networks (below 100%: rounding is faster). ResNet-18 and MobileNetV2 have random weights.""",
    measure=measure,
    axes={"model": Axis(tuple(MODELS))},
    also=("budget", "method"),
    tables=(
        Table(
            [
                text("model"),
                text("batch"),
                text("budget", "asked", "{:.0%}"),
                text("method", "widths"),
                text("multiples", f"in multiples of {MULTIPLE}"),
                text("removed", "MACs gone", "{:.1%}"),
                figure("time", "time", 1, 100, "%"),
                figure("against", "rounded / not", 1, 100, "%"),
            ],
            line=("model", "budget", "method"),
        ),
    ),
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
