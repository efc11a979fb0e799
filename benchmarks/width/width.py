"""Width pruning against other methods: real ResNet-20 and ResNet-56, and a ConvNeXt, 10,000 test JPEGs of CIFAR-10.

    pip install network-pruner==2.16
    PRUNERECOVER_DATA=... python -m benchmarks.width.width --models ResNet-20 --match macs
    PRUNERECOVER_DATA=... python -m benchmarks.width.width --stages prune_only bn_recalibrated one_epoch

Every method removes 20, 30 and 50% of the MACs or of the parameters and is scored at once, after BatchNorm
recalibration on 1,024 other training images (the ConvNeXt has no BatchNorm, and stays the same), and, as an option,
after an epoch on 5,000 training images. The 400 lossless test images are scored besides. Units and statistics are
chosen on training images alone. The published package's scores take minutes per network and seed; all other rows about
a minute each on two cores. `cifar_models.py` trains the ConvNeXt.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure as Picture
from torch import nn

from benchmarks.data.cifar import LEARNING_RATE, batches, hits, train_one_epoch
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.curves import draw_curves
from benchmarks.runner.page import Column, Line, Table, across, ahead, figure, grouped, text
from benchmarks.runner.rows import Figure, Row
from benchmarks.width.cifar_models import MODELS, load
from benchmarks.width.width_peers import METHODS, NOT_FOR_CONVNEXT, OURS, SCORED, removed, settle
from prunerecover import recalibrate_batchnorm
from prunerecover.cost.memory import peak_memory
from prunerecover.display.style import BLUE, GREEN, ORANGE, PURPLE, VERMILION, add_legend, empty_figure, styled

SHARES, SEEDS = (0.2, 0.3, 0.5), (0, 1, 2)
STAGES = ("prune_only", "bn_recalibrated", "one_epoch")
RECALIBRATION, EPOCH, OTHER = 1024, 5000, 1000  # images, images, and an offset of the seed for other images
BEST = "torch-pruning, the best of six"
STYLES = {
    OURS: (OURS, BLUE, "o"),
    "prunerecover, uniform": ("prunerecover, uniform", GREEN, "D"),
    BEST: (BEST, ORANGE, "s"),
    "network-pruner": ("FAIR-Pruner's package", VERMILION, "^"),
    "prunerecover, ToD by the book": ("Tolerance of Difference", PURPLE, "v"),
}


@lru_cache(maxsize=1)
def narrowed(model: str, match: str, seed: int, budget: float, method: str) -> tuple[nn.Module, float]:
    """Return a method's network, and its seconds; scores are shared, and only a seed's first budget pays for them."""
    started = time.perf_counter()
    network = load(model) if method == "dense" else METHODS[method](model, seed, match, budget)
    return network, time.perf_counter() - started


@lru_cache(maxsize=1)
def recalibrated(network: nn.Module, model: str, match: str, share: float, method: str, seed: int) -> nn.Module:
    """Return a copy after the method's training-free steps and BatchNorm recalibration."""
    network = copy.deepcopy(network)
    settle(network, method, model, seed, match, share)
    recalibrate_batchnorm(network, [x for x, _ in batches(RECALIBRATION, seed + OTHER)])
    return network


def measure(model: str, match: str, seed: int, budget: float, method: str, stage: str) -> dict[str, Any]:
    """Narrow by a method and score on all test images."""
    network, seconds = narrowed(model, match, seed, budget, method)
    if stage != STAGES[0]:
        network = recalibrated(network, model, match, budget, method, seed)
    if stage == STAGES[2]:
        network = train_one_epoch(copy.deepcopy(network), EPOCH, seed + OTHER)
    return {
        "top1": Figure.of(hits(network)),
        "top1_lossless": Figure(float(hits(network, "cifar10_lossless").mean()), n=400),
        "macs_share": 1 - removed(network, model, "macs"),
        "params_share": 1 - removed(network, model, "params"),
        "seconds": seconds,
        "peak_memory": peak_memory(torch.device("cpu")),
    }


def top1(line: Line) -> str:
    """Return the accuracies on JPEGs and on lossless images, the number of seeds, and the MACs where they differ."""
    jpeg, lossless = (
        np.mean([100 * row.figures[name].value for row in line.rows]) for name in ("top1", "top1_lossless")
    )
    gone = 1 - np.mean([row["macs_share"] for row in line.rows])
    macs = f"; {gone:.0%} MACs" if line.first["match"] == "params" else ""
    return f"{jpeg:.1f}, {lossless:.1f} ({len(line.rows)}{macs})"


def picture(rows: Sequence[Row]) -> Picture:
    """Draw top-1 over the removed MACs, a panel per network, with the best of torch-pruning's methods at each point."""
    drawn = empty_figure(9.0, 3.4)
    panels = drawn.subplots(1, len(MODELS), sharey=True, squeeze=False)[0]
    for axes, model in zip(map(styled, panels), MODELS, strict=True):
        own = [row for row in rows if row["model"] == model]
        (dense,) = (row.figures["top1"].value for row in own if row.method == "dense")
        shown = [row for row in own if row.is_of(match="macs", stage=STAGES[1])]
        draw_curves(axes, [*shown, *best(shown)], lambda row: 100 * float(row.budget), STYLES, OURS, dense)
        axes.set_title(model, fontsize=10)
        axes.set_xlabel("MACs removed, %", fontsize=9)
        axes.set_xticks([20, 30, 50])
    add_legend(drawn, *panels[0].get_legend_handles_labels(), "lower center")
    return drawn


def best(rows: Sequence[Row]) -> list[Row]:
    """Return for each budget the mean over seeds of the best of torch-pruning's ways."""
    found: dict[float, float] = {}
    for own in grouped([row for row in rows if row.method.startswith("torch-pruning")], ("budget", "method")):
        mean = float(np.mean([row.figures["top1"].value for row in own]))
        found[own[0].budget] = max(found.get(own[0].budget, 0.0), mean)
    return [Row(BEST, budget, figures={"top1": Figure(value)}) for budget, value in found.items()]


BENCHMARK = Benchmark(
    title="Width pruning against its peers: CIFAR-10, 10,000 test JPEGs",
    text=f"""Top-1 on the 10,000 JPEGs, on the 400 lossless images, mean over seeds (number of seeds; MACs removed where
    parameters are matched); ahead by: on the JPEGs, paired 95% interval. The default reconstructs its layers on the
    scored training images before BatchNorm is recalibrated, and enters the training epoch, of {EPOCH:,} images, so.
    Units are chosen on {SCORED} training images, BatchNorm recalibrated on {RECALIBRATION:,} others; scores are in bf16
    where the processor multiplies in it. The ConvNeXt has no BatchNorm: nothing is reconstructed. network-pruner leaves
    it unable to run. The epoch is at one learning rate for all methods, {LEARNING_RATE:g}: [best rates](best_rates.md)
    says what was run at the best of three for each.""",
    measure=measure,
    axes={
        "model": Axis(MODELS),
        "match": Axis(("macs", "params"), "--match"),
        "seed": Axis(SEEDS, open=True),
        "budget": Axis(SHARES, "--shares", open=True),
        "method": Axis(tuple(METHODS)),
        "stage": Axis(STAGES, default=STAGES[:2]),
    },
    references=[
        {"model": model, "match": "", "seed": 0, "budget": 0.0, "method": "dense", "stage": STAGES[0]}
        for model in MODELS
    ],
    skipped=lambda model, method, **names: model == "ConvNeXt" and method in NOT_FOR_CONVNEXT,
    complete=False,
    threads=0,
    tables=(
        Table(
            [
                text("model", "dense"),
                figure("top1", "top-1", 2, 100),
                figure("top1_lossless", "on the lossless images", 2, 100),
            ],
            line=("model",),
            where=lambda row: row.method == "dense",
        ),
        Table(
            [
                text("method"),
                *across(
                    "budget",
                    SHARES,
                    [
                        Column("{}", top1),
                        ahead("top1", "default ahead by", 1, 100, same=("budget",), method=OURS),
                    ],
                    "{:.0%}",
                ),
            ],
            title="{model}, share of {match} removed, {stage}",
            by=("model", "match", "stage"),
            where=lambda row: row.method != "dense",
        ),
    ),
    pictures={"": picture},
)

if __name__ == "__main__":
    BENCHMARK.main()
