"""Observations behind BoundaryDPT (arXiv 2607.03784), on real DeiT-Tiny: three figures and their numbers.

    PRUNERECOVER_DATA=... python -m benchmarks.depth.observations
    PRUNERECOVER_DATA=... python -m benchmarks.depth.observations --parts latency --again

1. Gate gradients of attentions and activations differ in scale: a single ranking compares unlike quantities.
2. With identities, removed activations hurt at once and recover fast, removed attentions the reverse; beside them, the
  same units with calibrated replacements. Scores are on 500 training images outside the training.
3. Latency by type of layer: the median of passes of 8 images on one thread, timed layer by layer.

About 20 minutes on a core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import MaxNLocator
from torch import nn

from benchmarks.boundary.boundary_methods import IMAGES, named, pruned, published_planner
from benchmarks.data.real import deit_tiny
from benchmarks.data.tiny_imagenet import PRECISION, QUIET, calibration, data, loss, module, unfused
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Table, figure, text
from benchmarks.runner.rows import Figure, Row
from prunerecover import Budget, Plan, find_units
from prunerecover.boundary.feasible import TYPES
from prunerecover.callbacks import DistillRecover
from prunerecover.display.style import BLUE, ORANGE, add_legend, new_figure
from prunerecover.importance.context import DepthContext
from prunerecover.importance.gate_gradient import gate_gradient
from prunerecover.model.hooks import removed_after

REMOVED, EPOCHS, IMAGES_PER_EPOCH, HELD_OUT = 4, 3, 500, 500
WARMUP, PASSES = 5, 40
LAYERS = {"attention": "attn", "MLP": "mlp", "norms": "norm"}
Found = dict[str, Any]


def gradient_scales() -> Iterator[Found]:
    """Yield the gate gradients of each type towards identities, as published."""
    network = deit_tiny()
    units = find_units(network, kinds=TYPES)
    context = DepthContext(model=network, units=units, batches=calibration(), loss=loss, replace="identity")
    scores = gate_gradient(context)
    for kind in TYPES:
        values = [float(scores[unit.name]) for unit in units if unit.kind == kind]
        yield {"method": kind, "median": Figure(float(np.median(np.abs(values))), n=len(values)), "values": values}


class Curve(pl.Callback):
    """Notes the validation accuracy before training and after every epoch, in percent."""

    def __init__(self) -> None:
        self.accuracies: list[float] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Append the validation accuracy."""
        self.accuracies.append(100 * float(trainer.callback_metrics["val_top1"]))


def recovery(plan: Plan) -> list[float]:
    """Return the accuracies of a pruned network before and after each epoch of recovery."""
    pl.seed_everything(1, verbose=False)
    curve, source = Curve(), data(IMAGES_PER_EPOCH, HELD_OUT)
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        num_sanity_val_steps=-1,
        callbacks=[DistillRecover(teacher=unfused(deit_tiny())), curve],
        **QUIET,
        **PRECISION,
    )
    trainer.fit(module(unfused(pruned(plan))), source)
    return curve.accuracies


def recoveries() -> Iterator[Found]:
    """Yield the curves of each type, with identities and with calibrated replacements."""
    for kind in TYPES:
        published = published_planner().plan(Budget(remove={kind: REMOVED}))
        names = published.removed[kind]
        for replace, plan in (("identity", published), ("calibrated", named(names, "calibrated"))):
            yield {"method": f"{REMOVED} {kind}s, {replace}", "removed": list(names), "top1": recovery(plan)}


def latency_by_layer() -> Iterator[Found]:
    """Yield the share of the latency in the layers of each type."""
    network, passes = deit_tiny(), []
    with _timed(network) as spent, torch.inference_mode():
        for _ in range(WARMUP + PASSES):
            spent.update(dict.fromkeys((*LAYERS, "all"), 0.0))
            network(IMAGES)
            passes.append(dict(spent))
    shares = {name: float(np.median([p[name] / p["all"] for p in passes[WARMUP:]])) for name in LAYERS}
    for name, share in {**shares, "all else": 1 - sum(shares.values())}.items():
        yield {"method": name, "share": Figure(share, n=PASSES)}


@contextmanager
def _timed(network: nn.Module) -> Iterator[dict[str, float]]:
    """Add up the seconds in each type of layer, and in the whole network, inside a `with` block."""
    spent: dict[str, float] = {}
    children = [child for block in network.blocks for child in block.named_children()]
    watched = {layer: kind for name, layer in children for kind, prefix in LAYERS.items() if name.startswith(prefix)}
    watched[network] = "all"
    started: dict[nn.Module, float] = {}

    def begin(layer: nn.Module, _: Any) -> None:
        started[layer] = time.perf_counter()

    def end(layer: nn.Module, _: Any, __: Any) -> None:
        spent[watched[layer]] += time.perf_counter() - started[layer]

    handles = [handle for layer in watched for handle in _hooked(layer, begin, end)]
    with removed_after(*handles):
        yield spent


def _hooked(layer: nn.Module, begin: Any, end: Any) -> tuple[Any, Any]:
    return layer.register_forward_pre_hook(begin), layer.register_forward_hook(end)


def plot_scales(rows: Sequence[Row]) -> Picture:
    """Draw the gate gradient of every unit over depth, by type."""
    drawn, axes = new_figure(6.0, 3.4)
    own = [row for row in rows if row["part"] == "gradients"]
    for row, color in zip(own, (BLUE, ORANGE), strict=True):
        axes.plot(range(len(row["values"])), np.abs(row["values"]), color=color, marker="o", label=row.method)
    axes.set_yscale("log")
    axes.set_xlabel("block")
    axes.set_ylabel("|gate gradient|")
    add_legend(drawn, *axes.get_legend_handles_labels(), "upper left")
    return drawn


def plot_recoveries(rows: Sequence[Row]) -> Picture:
    """Draw accuracy over epochs of recovery, by type and replacement."""
    drawn, axes = new_figure(6.0, 3.4)
    for row in (row for row in rows if row["part"] == "recovery"):
        color, style = BLUE if "attention" in row.method else ORANGE, ":" if "identity" in row.method else "-"
        axes.plot(range(len(row["top1"])), row["top1"], color=color, linestyle=style, marker="o", label=row.method)
    axes.set_xlabel(f"epochs of {IMAGES_PER_EPOCH} images")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("top-1, %")
    add_legend(drawn, *axes.get_legend_handles_labels(), "upper left")
    return drawn


def plot_latency(rows: Sequence[Row]) -> Picture:
    """Draw the share of the latency of each type of layer."""
    drawn, axes = new_figure(4.4, 2.4)
    own = [row for row in rows if row["part"] == "latency"]
    axes.barh([row.method for row in own], [100 * row.figures["share"].value for row in own], color=BLUE)
    axes.set_xlabel("share of the latency, %")
    return drawn


def ratio(rows: Sequence[Row]) -> list[str]:
    """Return a line on how far the gradients of the types are apart."""
    attention, activation = (row.figures["median"].value for row in rows if row["part"] == "gradients")
    return [f"The gradients of attentions are {attention / activation:.2f} times those of activations, by the median."]


PARTS: dict[str, Callable[[], Iterator[Found]]] = {
    "gradients": gradient_scales,
    "recovery": recoveries,
    "latency": latency_by_layer,
}
BENCHMARK = Benchmark(
    name="observations",
    doc=__doc__,
    title="The observations behind BoundaryDPT, on DeiT-Tiny",
    text=f"""Gate gradients of attentions and activations; top-1 on {HELD_OUT} held-out training images before and after
    each epoch of {IMAGES_PER_EPOCH} images; and shares of the latency by type of layer, medians of {PASSES} passes.""",
    measure=lambda part: PARTS[part](),
    axes={"part": Axis(tuple(PARTS))},
    also=("method",),
    tables=(
        Table(
            [text("method", "type"), figure("median", "median |gate gradient|", 4)],
            by=("part",),
            where=lambda row: row["part"] == "gradients",
        ),
        Table(
            [
                text("method", "removed, left in their place"),
                Column("top-1", lambda line: ", ".join(f"{value:.1f}" for value in line.first["top1"])),
            ],
            by=("part",),
            where=lambda row: row["part"] == "recovery",
        ),
        Table(
            [text("method", "layers"), figure("share", "share of the latency", 1, 100, "%")],
            by=("part",),
            where=lambda row: row["part"] == "latency",
        ),
    ),
    closing=ratio,
    pictures={"_scales": plot_scales, "_recovery": plot_recoveries, "_latency": plot_latency},
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
