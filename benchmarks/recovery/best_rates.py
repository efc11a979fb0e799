"""Recovery at the best of three learning rates, for our methods and others': width, depth and a joint budget.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.best_rates --subjects resnet20_width --seeds 0 1
    PRUNERECOVER_DATA=... python -m benchmarks.recovery.best_rates

Rows of width, graph_depth and natural_call at a single rate depend on the rate as much as on the method. Here each
method trains at three rates under `recovery_schedule`, ours and others' alike; the rate is chosen on held-out training
images, and only the network of the chosen rate is scored on the test images. Resumable row by row: half a minute for a
ResNet-20 on a core, two for a ResNet-56, eight for DeiT-Tiny and its planning besides.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from benchmarks.recovery.best_rates_subjects import DENSE, SUBJECTS
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Line, Table, ahead, figure, mean, seeds, text
from benchmarks.runner.rows import Figure, Row

METHODS = tuple(dict.fromkeys(method for subject in SUBJECTS.values() for method in subject.methods))


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
    held_out: Callable[[nn.Module], NDArray[np.float64]],
) -> BestOfRates:
    """Train copies of a network at several rates, and keep the best; of equal ones, the smallest rate wins.

    Args:
        network: Network; unchanged.
        rates: Rates in ascending order.
        train: Function that trains a network in place at a rate, and returns it.
        held_out: Function from a network to its hits on images outside training and results.
    """
    networks = {rate: train(copy.deepcopy(network), rate) for rate in rates}
    accuracies = {rate: 100 * float(held_out(trained).mean()) for rate, trained in networks.items()}
    best = max(rates, key=lambda rate: accuracies[rate])
    return BestOfRates(best, networks[best], accuracies)


def measure(seed: int, subject: str, method: str) -> dict[str, Any]:
    """Prune by a method, recover at the best rate and score."""
    one = SUBJECTS[subject]
    start = one.start(method, seed)
    best = best_of_rates(
        start,
        one.rates,
        lambda network, rate: one.train(network, rate, seed),
        lambda network: one.held_out(network, seed),
    )
    return {
        "top1": Figure.of(one.hits(best.network)),
        "macs_share": one.macs(start) / one.macs(one.start(DENSE, seed)),
        "rate": best.rate,
        "held_out": [best.held_out[rate] for rate in one.rates],
    }


def by_rate(line: Line, number: int) -> str:
    """Return the held-out accuracy at a rate; the most frequently chosen rate is in bold."""
    rates, chosen = SUBJECTS[line.first["subject"]].rates, [row["rate"] for row in line.rows]
    mean = np.mean([row["held_out"][number] for row in line.rows])
    return f"**{mean:.1f}**" if rates[number] == max(rates, key=chosen.count) else f"{mean:.1f}"


def ours(line: Line) -> str:
    """Return the method that the others of a subject are compared with."""
    return SUBJECTS[line.first["subject"]].methods[0]


def about(rows: Sequence[Row]) -> str:
    """Return the lines above a table: the subject, and the methods whose best rate may lie beyond the three."""
    subject = SUBJECTS[rows[0]["subject"]]
    ends = (subject.rates[0], subject.rates[-1])
    beyond = [method for method in METHODS if any(row["rate"] in ends for row in rows if row.method == method)]
    rates = ", ".join(f"{rate:g}" for rate in subject.rates)
    said = f" Best at an end of the three rates, perhaps better beyond it: {'; '.join(beyond)}." if beyond else ""
    return f"{subject.title}. {subject.text} Rates: {rates}.{said}"


BENCHMARK = Benchmark(
    name="best_rates",
    doc=__doc__,
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
        "subject": Axis(tuple(SUBJECTS)),
        "method": Axis(METHODS),
    },
    skipped=lambda seed, subject, method: method not in SUBJECTS[subject].methods,
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
                Column("default ahead by", lambda line: ahead("top1", "", 1, 100, method=ours(line)).cell(line)),
                seeds(),
            ],
            title="{subject}",
            by=("subject",),
            text=about,
        ),
    ),
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
