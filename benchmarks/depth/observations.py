"""The observations behind BoundaryDPT (arXiv 2607.03784), on real DeiT-Tiny: three figures and their numbers.

    PRUNERECOVER_DATA=... python -m benchmarks.depth.observations
    PRUNERECOVER_DATA=... python -m benchmarks.depth.observations --again latency_shares

1. Gate gradients of attentions and activations differ in scale: one ranking of both compares what does not compare.
2. Removed activations hurt at once and recover fast, removed attentions the reverse, when both leave identities; beside
   them the same units with calibrated replacements. Scored on 500 training images that are not trained on.
3. Which type of layer the time goes to: the median of passes of 8 images on one thread, timed layer by layer.

About 20 minutes on a core. Resumable: what is in the results is not measured again, unless it is named.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import nn

from benchmarks.boundary.boundary_methods import IMAGES, named, pruned, published_planner
from benchmarks.data.real import RESULTS, commands_so_far, deit_tiny, made_by, parser, write
from benchmarks.data.tiny_imagenet import PRECISION, QUIET, calibration, data, loss, module, unfused
from prunerecover import Budget, Plan, find_units
from prunerecover.boundary.feasible import TYPES
from prunerecover.callbacks import DistillRecover
from prunerecover.display.markdown import table
from prunerecover.display.style import BLUE, ORANGE, add_legend, new_figure
from prunerecover.importance.context import DepthContext
from prunerecover.importance.gate_gradient import gate_gradient
from prunerecover.model.hooks import removed_after

REMOVED, EPOCHS, IMAGES_PER_EPOCH, HELD_OUT = 4, 3, 500, 500
WARMUP, PASSES = 5, 40
LAYERS = {"attention": "attn", "MLP": "mlp", "norms": "norm"}


def gradient_scales() -> list[dict[str, Any]]:
    """Return every unit's gate gradient, towards an identity, as published."""
    network = deit_tiny()
    units = find_units(network, kinds=TYPES)
    scores = gate_gradient(
        DepthContext(model=network, units=units, batches=calibration(), loss=loss, replace="identity")
    )
    return [{"unit": unit.name, "type": unit.kind, "gate_gradient": float(scores[unit.name])} for unit in units]


class Curve(pl.Callback):
    """Notes the validation accuracy before training and after every epoch, in percent."""

    def __init__(self) -> None:
        self.accuracies: list[float] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note it."""
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


def recoveries() -> list[dict[str, Any]]:
    """Return the curves of each type, with identities and with calibrated replacements."""
    rows = []
    for kind in TYPES:
        published = published_planner().plan(Budget(remove={kind: REMOVED}))
        names = published.removed[kind]
        for replace, plan in (("identity", published), ("calibrated", named(names, "calibrated"))):
            rows.append({"type": kind, "removed": list(names), "replace": replace, "top1": recovery(plan)})
    return rows


def latency_by_layer() -> dict[str, float]:
    """Return the share of the latency that is spent in the layers of each type."""
    network, passes = deit_tiny(), []
    with _timed(network) as spent, torch.inference_mode():
        for _ in range(WARMUP + PASSES):
            spent.update(dict.fromkeys((*LAYERS, "all"), 0.0))
            network(IMAGES)
            passes.append(dict(spent))
    shares = {name: [spent[name] / spent["all"] for spent in passes[WARMUP:]] for name in LAYERS}
    found = {name: float(np.median(values)) for name, values in shares.items()}
    return {**found, "all else": 1 - sum(found.values())}


@contextmanager
def _timed(network: nn.Module) -> Iterator[dict[str, float]]:
    """Add up the seconds in each type of layer, and in the whole network, while it computes."""
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


def plot_scales(rows: list[dict[str, Any]]) -> Figure:
    """Draw the gate gradient of every unit over depth, by type."""
    figure, axes = new_figure(6.0, 3.4)
    for kind, color in zip(TYPES, (BLUE, ORANGE), strict=True):
        values = [abs(row["gate_gradient"]) for row in rows if row["type"] == kind]
        axes.plot(range(len(values)), values, color=color, marker="o", label=kind)
    axes.set_yscale("log")
    axes.set_xlabel("block")
    axes.set_ylabel("|gate gradient|")
    add_legend(figure, *axes.get_legend_handles_labels(), "upper left")
    return figure


def plot_recoveries(rows: list[dict[str, Any]]) -> Figure:
    """Draw accuracy over epochs of recovery, by type and replacement."""
    figure, axes = new_figure(6.0, 3.4)
    for row in rows:
        color = BLUE if row["type"] == "attention" else ORANGE
        style = ":" if row["replace"] == "identity" else "-"
        label = f"{REMOVED} {row['type']}s, {row['replace']}"
        axes.plot(range(len(row["top1"])), row["top1"], color=color, linestyle=style, marker="o", label=label)
    axes.set_xlabel(f"epochs of {IMAGES_PER_EPOCH} images")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("top-1, %")
    add_legend(figure, *axes.get_legend_handles_labels(), "upper left")
    return figure


def plot_latency(shares: dict[str, float]) -> Figure:
    """Draw the share of the latency of each type of layer."""
    figure, axes = new_figure(4.4, 2.4)
    axes.barh(list(shares), [100 * share for share in shares.values()], color=BLUE)
    axes.set_xlabel("share of the latency, %")
    return figure


def markdown(
    scales: list[dict[str, Any]], curves: list[dict[str, Any]], shares: dict[str, float], commands: list[str]
) -> str:
    """Render all three."""
    medians = {kind: float(np.median([abs(r["gate_gradient"]) for r in scales if r["type"] == kind])) for kind in TYPES}
    lines = [
        "# The observations behind BoundaryDPT, on DeiT-Tiny",
        "",
        *made_by(commands),
        f"Median |gate gradient|: attention {medians['attention']:.4f}, activation {medians['activation']:.4f}, "
        f"a ratio of {medians['attention'] / medians['activation']:.2f}.",
        "",
        "![Gate gradients](observations_scales.png)",
        "",
        f"Top-1 on {HELD_OUT} held-out training images before and after each epoch of {IMAGES_PER_EPOCH} images:",
        "",
        table(
            ("removed", "left in their place", "top-1"),
            [(f"{REMOVED} {r['type']}s", r["replace"], ", ".join(f"{v:.1f}" for v in r["top1"])) for r in curves],
        ),
        "",
        "![Recovery by type](observations_recovery.png)",
        "",
        f"Share of the latency by type of layer, median of {PASSES} passes: "
        + ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        + ".",
        "",
        "![Latency by type of layer](observations_latency.png)",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, draw and write."""
    command_line = parser(__doc__)
    command_line.add_argument("--again", nargs="*", default=[], choices=PARTS, help="parts to measure anew")
    options = command_line.parse_args()
    path = RESULTS / "observations.json"
    known = json.loads(path.read_text()) if path.is_file() else {}
    found: dict[str, Any] = {}
    for part, measure in PARTS.items():
        found[part] = known[part] if part in known and part not in options.again else measure()
    scales, curves, shares = found.values()
    figures = {"scales": plot_scales(scales), "recovery": plot_recoveries(curves), "latency": plot_latency(shares)}
    for name, figure in figures.items():
        figure.savefig(RESULTS / f"observations_{name}.png", dpi=110)
    commands = commands_so_far("observations")
    result = {"commands": commands, **found, "seed": 1}
    write("observations", result, markdown(scales, curves, shares, commands))


PARTS: dict[str, Callable[[], Any]] = {
    "gate_gradients": gradient_scales,
    "recoveries": recoveries,
    "latency_shares": latency_by_layer,
}


if __name__ == "__main__":
    main()
