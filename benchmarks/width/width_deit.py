"""Heads and neurons of the real DeiT-Tiny: width pruning at matched MACs, on the 200 classes of tiny_imagenet.

    PRUNERECOVER_DATA=... python -m benchmarks.width.width_deit

Ours, Tolerance of Difference and uniform shares narrow heads and neurons. The default tries several weights of a head
against a neuron; a row shows gate gradients alone. torch-pruning's isomorphic pruning narrows its own choice
(embedding, head dimensions and neurons, with all heads kept). All score the same 192 training images, remove 20 and 40%
of the MACs, and are scored on every second validation image, 2,500, before and after an epoch on 1,000 training images
with distillation. 3 to 8 minutes per method and budget on a core.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from torch import nn

from benchmarks.boundary.boundary_methods import IMAGES, isomorphic, least_ratio
from benchmarks.data.real import deit_tiny
from benchmarks.data.tiny_imagenet import calibration, hits, loss, recover, validation
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, across, ahead, figure, text
from benchmarks.runner.rows import Figure
from prunerecover import Budget, apply_plan
from prunerecover.cost.macs import count_macs
from prunerecover.model.batches import ModelInputs
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.width.allocation.by_importance import per_cost
from prunerecover.width.allocator import WidthAllocator
from prunerecover.width.arguments import WidthConfig, WidthRule
from prunerecover.width.compensation import fit_compensation, with_compensation
from prunerecover.width.groups.narrow_edits import narrow_edits

SHARES, IMAGES_TO_RECOVER, SEED, STEPS = (0.2, 0.4), 1000, 1, 10


@cache
def planner() -> WidthAllocator:
    """Return our planner for heads and neurons."""
    return WidthAllocator(
        Session(deit_tiny(), calibration(), loss=loss), WidthConfig(loss=loss, kinds=("head", "neuron"))
    )


def ours(share: float, **how: Any) -> nn.Module:
    """Narrow by a rule of ours."""
    network = deit_tiny()
    apply_plan(network, planner().plan(Budget(macs=share), WidthRule(**how)))
    return network


def as_scored(share: float) -> nn.Module:
    """Narrow by gate gradients per cost, with no rate between heads and neurons."""
    network, narrow = deit_tiny(), planner()
    (scores,) = narrow.scores("gate_taylor")
    edits = narrow_edits(narrow.groups, per_cost(narrow.groups, scores, narrow.costs, Budget(macs=share)))
    found = fit_compensation(network, edits, [ModelInputs((images,)) for images, _ in calibration()])
    apply_edits(network, *with_compensation(edits, found))
    return network


def by_isomorphism(share: float) -> nn.Module:
    """Narrow by torch-pruning to the least ratio that removes the share."""
    return isomorphic(least_ratio(lambda ratio: 1 - macs_share(isomorphic(ratio)), share, STEPS))


OURS = "prunerecover, per cost (default)"
METHODS = {
    OURS: ours,
    "prunerecover, per cost, kinds as scored": as_scored,
    "prunerecover, ToD by the book": partial(ours, allocation="fair_pruner", replace="zero"),
    "prunerecover, uniform, lowest U-Score": partial(ours, allocation="uniform", importance="u_score", replace="zero"),
    "prunerecover, uniform": partial(ours, allocation="uniform"),
    "torch-pruning, Taylor, isomorphic": by_isomorphism,
}


def macs_share(network: nn.Module) -> float:
    """Return the share of the dense network's MACs."""
    return count_macs(network, IMAGES[:1]) / count_macs(deit_tiny(), IMAGES[:1])


def scored(network: nn.Module) -> Figure:
    """Score a network on every second validation image."""
    return Figure.of(hits(network, ((images[::2], labels[::2]) for images, labels in validation())))


def measure(budget: float, method: str) -> Iterator[dict[str, Any]]:
    """Narrow, score, recover and score again."""
    network = deit_tiny() if method == "dense" else METHODS[method](budget)
    share = macs_share(network)
    yield {"stage": "prune_only", "top1": scored(network), "macs_share": share}
    if method != "dense":
        recover(network, IMAGES_TO_RECOVER, SEED)
        yield {"stage": "recovered", "top1": scored(network), "macs_share": share}


BENCHMARK = Benchmark(
    title="Heads and neurons of DeiT-Tiny at matched MACs, tiny_imagenet, 200 classes",
    text=f"""Top-1 in percent, 2,500 validation images; paired 95% intervals. Recovered: one epoch of
    {IMAGES_TO_RECOVER:,} training images with distillation, the same for all.""",
    measure=measure,
    axes={"budget": Axis(SHARES, open=True), "method": Axis(tuple(METHODS))},
    references=[{"budget": 0.0, "method": "dense"}],
    also=("stage",),
    tables=(
        Table([text("method"), figure("top1", "top-1", 1, 100)], where=lambda row: row.method == "dense"),
        Table(
            [
                text("method"),
                *across(
                    "budget",
                    SHARES,
                    [
                        figure("top1", "{}", 1, 100, ends=False),
                        ahead("top1", "default ahead by", 1, 100, same=("budget",), method=OURS),
                    ],
                    "{:.0%}",
                ),
            ],
            title="{stage}",
            by=("stage",),
            where=lambda row: row.method != "dense",
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
