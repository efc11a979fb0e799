"""Recovery at the best of three learning rates, for our methods and others'.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.best_rates --subjects resnet20_width --seeds 0 1
    PRUNERECOVER_DATA=... python -m benchmarks.recovery.best_rates

Rows of width at a single rate depend on the rate as much as on the method. Here each method trains at three rates under
`recovery_schedule`, ours and others' alike; the rate is chosen on held-out training images, and only the network of the
chosen rate is scored on the test images. Networks are pruned, calibrated and scored as in `width.py`. Resumable row by
row: half a minute for a ResNet-20 on a core, two for a ResNet-56.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from benchmarks.data import cifar
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Line, Table, ahead, figure, mean, seeds, text
from benchmarks.runner.rows import Figure, Row, Scores
from benchmarks.width import width_peers
from benchmarks.width.cifar_models import load
from benchmarks.width.width import EPOCH, OTHER, recalibrated
from prunerecover import recovery_schedule

DENSE, OURS, HALF = "dense", width_peers.OURS, 0.5  # of the MACs
RATES, HELD_OUT = (0.01, 0.03, 0.1), 2000  # training images for the choice of the rate
MODELS = {"resnet20_width": "ResNet-20", "resnet56_width": "ResNet-56"}
BOTH = (OURS, *(f"torch-pruning, {how}" for how in ("Taylor, isomorphic", "Taylor, global", "BN scale, global")))
BOTH += ("torch-pruning, magnitude, uniform",)
OF_RESNET20 = ("Taylor, uniform", "magnitude, global", "Hessian, global")
MORE = (*(f"torch-pruning, {how}" for how in OF_RESNET20), "prunerecover, not reconstructed")
METHODS = (*BOTH, *MORE, DENSE)


@dataclass(frozen=True)
class BestOfRates:
    """Result of the best rate for a network.

    Attributes:
        rate: Best rate on the held-out images.
        network: Network trained at the best rate.
        held_out: Held-out accuracy by rate, in percent.
    """

    rate: float
    network: nn.Module
    held_out: Mapping[float, float]


def best_of_rates(
    network: nn.Module,
    rates: tuple[float, ...],
    train: Callable[[nn.Module, float], nn.Module],
    held_out: Callable[[nn.Module], Scores],
) -> BestOfRates:
    """Train copies of a network at several rates, and keep the best; the smallest rate wins ties.

    Args:
        network: Network; unchanged.
        rates: Rates in ascending order.
        train: Function that trains and returns a network at a rate, in place.
        held_out: Function from a network to the hits on images outside training and results.
    """
    networks = {rate: train(copy.deepcopy(network), rate) for rate in rates}
    accuracies = {rate: 100 * float(held_out(trained).mean()) for rate, trained in networks.items()}
    best = max(rates, key=lambda rate: accuracies[rate])
    return BestOfRates(best, networks[best], accuracies)


def start(model: str, method: str, seed: int) -> nn.Module:
    """Return the network of a method, before training."""
    if method == DENSE:
        return load(model)
    network = width_peers.METHODS[method](model, seed, "macs", HALF)
    return recalibrated(network, model, "macs", HALF, method, seed)


def held_out(network: nn.Module, seed: int) -> Scores:
    """Return the hits of a network on held-out training images."""
    images = cifar.training_images(EPOCH + HELD_OUT, seed + OTHER)
    return cifar.right(network, *(tensor[EPOCH:] for tensor in images))


def measure(seed: int, subject: str, method: str) -> dict[str, Any]:
    """Prune by a method, recover at the best rate and score."""

    def train(network: nn.Module, rate: float) -> nn.Module:
        return cifar.train_one_epoch(network, EPOCH, seed + OTHER, rate, recovery_schedule)

    model = MODELS[subject]
    first = start(model, method, seed)
    best = best_of_rates(first, RATES, train, lambda network: held_out(network, seed))
    return {
        "top1": Figure.of(cifar.hits(best.network)),
        "macs_share": 1 - width_peers.removed(first, model, "macs"),
        "rate": best.rate,
        "held_out": [best.held_out[rate] for rate in RATES],
    }


def by_rate(line: Line, number: int) -> str:
    """Return the held-out accuracy at a rate; the most frequently chosen rate is in bold."""
    chosen = [row["rate"] for row in line.rows]
    mean = np.mean([row["held_out"][number] for row in line.rows])
    return f"**{mean:.1f}**" if RATES[number] == max(RATES, key=chosen.count) else f"{mean:.1f}"


def about(rows: Sequence[Row]) -> str:
    """Return the lines above a table: the subject, and the methods whose best rate may lie beyond the three."""
    ends = (RATES[0], RATES[-1])
    beyond = [method for method in METHODS if any(row["rate"] in ends for row in rows if row.method == method)]
    said = f" Best at an end of the three rates, perhaps better beyond it: {'; '.join(beyond)}." if beyond else ""
    return (
        f"{MODELS[rows[0]['subject']]}, half of the MACs out in width. Methods and calibration are those of "
        f"[width](width.md). One epoch of {EPOCH:,} training images: SGD with momentum 0.9, random crops and flips; "
        f"the rate is chosen on {HELD_OUT:,} other training images, and the test images are all 10,000 JPEGs. Rates: "
        f"{', '.join(f'{rate:g}' for rate in RATES)}.{said}"
    )


BENCHMARK = Benchmark(
    title="Recovery at the best of three learning rates",
    text="""Every method, ours and theirs, trains at three rates under `recovery_schedule`: a warm-up, then a straight
    line to zero, which reaches about half of the rate. The rate is chosen on training images that were left out of the
    training, for each method and seed (bold: in most seeds); only the network of this rate is scored on the test
    images. Held-out and test accuracies in percent, means over seeds; ahead: the default's minus theirs on the same
    test images, of the seeds that both have, with the paired 95% interval over images. The dense network has learnt
    from the images that choose: they say which rate is best, not how good a network is.""",
    measure=measure,
    axes={
        "seed": Axis((0,), open=True),
        "subject": Axis(tuple(MODELS)),
        "method": Axis(METHODS),
    },
    skipped=lambda seed, subject, method: method in MORE and subject != "resnet20_width",
    tables=(
        Table(
            [
                text("method"),
                mean("macs_share", "MACs left"),
                *(
                    Column(f"held-out, {name} rate", lambda line, number=number: by_rate(line, number))
                    for number, name in enumerate(("low", "middle", "high"))
                ),
                figure("top1", "top-1", 1, 100, ends=False),
                ahead("top1", "default ahead by", 1, 100, method=OURS),
                seeds(),
            ],
            title="{subject}",
            by=("subject",),
            text=about,
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
