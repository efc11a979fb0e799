"""Recovery at the best of three learning rates, for every method, ours and theirs: width, depth and one budget.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.best_rates --subjects resnet20_width --seeds 0 1
    PRUNERECOVER_DATA=... python -m benchmarks.recovery.best_rates

Rows of width, graph_depth and natural_call that were trained at one rate for all say as much of the rate as of the
method. Here each method trains at three rates under `recovery_schedule`, ours and theirs alike; the rate is chosen on
training images that were left out, and the network of this rate alone is scored on the test images. Resumable row by
row: half a minute for a ResNet-20 on a core, two for a ResNet-56, eight for DeiT-Tiny and its planning besides.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.data.real import RESULTS, made_by, parser, write
from benchmarks.depth.graph_depth_rows import add, difference, measured, rows_so_far, without_samples
from benchmarks.recovery.best_rates_subjects import DENSE, SUBJECTS, Subject
from prunerecover.display.markdown import table

NAME = "best_rates"
ROWS = RESULTS / f"{NAME}.rows.jsonl"
Row = dict[str, Any]


@dataclass(frozen=True)
class BestOfRates:
    """What one start became.

    Attributes:
        rate: The one that is best on images that were left out of the training.
        network: Trained at it.
        held_out: Accuracy on these images by rate, in percent.
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
    """Train copies of a network at several rates, and keep the best; of equal ones that of the smallest rate.

    Args:
        network: Left as it is.
        rates: In ascending order.
        train: Trains a network in place at a rate, and returns it.
        held_out: Says of each image that nothing is trained or reported on whether a network is right.
    """
    networks = {rate: train(copy.deepcopy(network), rate) for rate in rates}
    accuracies = {rate: 100 * float(held_out(trained).mean()) for rate, trained in networks.items()}
    best = max(rates, key=lambda rate: accuracies[rate])
    return BestOfRates(best, networks[best], accuracies)


def made(name: str, method: str, seed: int) -> Row:
    """Prune by a method, recover at the best rate and score."""
    subject = SUBJECTS[name]
    start = subject.start(method, seed)
    best = best_of_rates(
        start,
        subject.rates,
        lambda network, rate: subject.train(network, rate, seed),
        lambda network: subject.held_out(network, seed),
    )
    return measured(
        subject.hits(best.network),
        seed,
        subject=name,
        method=method,
        macs_share=subject.macs(start) / subject.macs(subject.start(DENSE, seed)),
        rate=best.rate,
        held_out=[best.held_out[rate] for rate in subject.rates],
    )


def main() -> None:
    """Make the rows that are missing, and write the page."""
    options = parser(__doc__)
    options.add_argument("--subjects", nargs="*", default=list(SUBJECTS), choices=list(SUBJECTS))
    options.add_argument("--methods", nargs="*", help="of the subjects; by default all")
    options.add_argument("--seeds", type=int, nargs="*", default=[0])
    given = options.parse_args()
    torch.set_num_threads(1)
    for seed in given.seeds:
        for name in given.subjects:
            for method in given.methods or SUBJECTS[name].methods:
                if not rows_so_far(ROWS, subject=name, method=method, seed=seed):
                    print(without_samples(add(made(name, method, seed), ROWS)), flush=True)
    rows = rows_so_far(ROWS)
    write(NAME, {"rows": [without_samples(row) for row in rows]}, markdown(rows))


def markdown(rows: list[Row]) -> str:
    """Render a table per subject."""
    lines = [
        "# Recovery at the best of three learning rates",
        "",
        *made_by(sorted({row["command"] for row in rows})),
        "Every method, ours and theirs, trains at three rates under `recovery_schedule`: a warm-up, then a straight "
        "line to zero, which reaches about half of the rate. The rate is chosen on training images that were left out "
        "of the training, for each method and seed (bold: in most seeds); only the network of this rate is scored on "
        "the test images. Held-out and test accuracies in percent, means over seeds; ahead: the first row minus theirs "
        "on the same test images, of the seeds that both have, with the paired 95% interval over images. The dense "
        "network has learnt from the images that choose: they say which rate is best, not how good a network is.",
    ]
    for name, subject in SUBJECTS.items():
        own = [row for row in rows if row["subject"] == name]
        found = ["", section(subject, own)] if own else []
        lines += ["", f"## {subject.title}", "", subject.text, *found, *notes(subject, own)]
    return "\n".join(lines)


def section(subject: Subject, rows: list[Row]) -> str:
    """Render the rows of a subject."""
    ours = of(rows, subject.methods[0])
    head = ("method", "MACs left", *(f"held-out at {rate:g}" for rate in subject.rates))
    cells = []
    for method in subject.methods:
        if own := of(rows, method):
            values = [100 * row["value"] for row in own]
            each = f" ({', '.join(f'{value:.1f}' for value in values)})" if len(values) > 1 else ""
            ahead = "" if method == subject.methods[0] else difference(ours, own, 100, 1)
            share = f"{np.mean([row['macs_share'] for row in own]):.1%}"
            cells.append((method, share, *by_rate(subject, own), f"{np.mean(values):.1f}{each}", ahead, seeds(own)))
    return table((*head, "top-1", "first row ahead by", "seeds"), cells)


def by_rate(subject: Subject, rows: list[Row]) -> list[str]:
    """Render the held-out accuracies, that of the rate which was chosen most often in bold."""
    chosen = [row["rate"] for row in rows]
    most = max(subject.rates, key=chosen.count)
    means = np.mean([row["held_out"] for row in rows], axis=0)
    return [
        f"**{mean:.1f}**" if rate == most else f"{mean:.1f}" for rate, mean in zip(subject.rates, means, strict=True)
    ]


def notes(subject: Subject, rows: list[Row]) -> list[str]:
    """Return lines that name the methods whose best rate may lie beyond the three, and those without a row."""
    ends = (subject.rates[0], subject.rates[-1])
    beyond = [m for m in subject.methods if any(row["rate"] in ends for row in of(rows, m))]
    missing = [method for method in subject.methods if not of(rows, method)]
    said = {"Best at an end of the three rates, perhaps better beyond it": beyond, "Not run": missing}
    return [line for text, methods in said.items() if methods for line in ("", f"{text}: {'; '.join(methods)}.")]


def of(rows: list[Row], method: str) -> list[Row]:
    """Return the rows of a method, by seed."""
    return sorted((row for row in rows if row["method"] == method), key=lambda row: row["seed"])


def seeds(rows: list[Row]) -> str:
    """Render the seeds of rows."""
    return ", ".join(str(row["seed"]) for row in rows)


if __name__ == "__main__":
    main()
