"""The observations behind BoundaryDPT (arXiv 2607.03784), on real DeiT-Tiny: three figures and their numbers.

    PRUNERECOVER_DATA=... python benchmarks/observations.py

1. Gate gradients of attentions and activations differ in scale: one ranking of both compares what does not compare.
2. Removed activations hurt at once and recover fast, removed attentions the reverse, when both leave identities; beside
   them the same units with calibrated replacements. Scored on 500 training images that are not trained on.
3. Which type of layer the time goes to, per block, batch 8.

About 20 minutes on a core.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from boundary_methods import IMAGES, named, pruned, published_planner
from matplotlib.figure import Figure
from real import RESULTS, command, deit_tiny, write
from tiny_imagenet import PRECISION, QUIET, calibration, data, loss, module, unfused
from torch import nn

from prunerecover import Budget, Plan, find_units
from prunerecover.boundary_budget import TYPES
from prunerecover.callbacks import DistillRecover
from prunerecover.figure_style import BLUE, ORANGE, add_legend, new_figure
from prunerecover.importance.gate_gradient import gate_gradient
from prunerecover.latency import latency_ratio

REMOVED, EPOCHS, IMAGES_PER_EPOCH, HELD_OUT = 4, 3, 500, 500
LAYERS = {"attention": "attn", "MLP": "mlp", "norms": "norm"}


def gradient_scales() -> list[dict[str, Any]]:
    """Return every unit's gate gradient, towards an identity, as published."""
    network = deit_tiny()
    units = find_units(network, TYPES)
    scores = gate_gradient(network, units, calibration(), loss, replace="identity")
    return [{"unit": unit.name, "type": unit.kind, "gate_gradient": scores[unit.name]} for unit in units]


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
    """Return the share of the latency that is gone when all layers of one type are skipped."""
    left = {name: latency_ratio(deit_tiny(), _without(prefix), IMAGES, pairs=30) for name, prefix in LAYERS.items()}
    return {name: 1 - found.ratio.value for name, found in left.items()}


def _without(prefix: str) -> nn.Module:
    """Return the dense network with every layer of one type handing on its input."""
    network = deit_tiny()
    for block in network.blocks:
        for name in [name for name, _ in block.named_children() if name.startswith(prefix)]:
            setattr(block, name, _HandOn())
    return network


class _HandOn(nn.Module):
    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return x


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
    axes.set_ylabel("top-1, %")
    add_legend(figure, *axes.get_legend_handles_labels(), "upper left")
    return figure


def plot_latency(shares: dict[str, float]) -> Figure:
    """Draw the share of the latency of each type of layer."""
    figure, axes = new_figure(4.4, 2.4)
    axes.barh(list(shares), [100 * share for share in shares.values()], color=BLUE)
    axes.set_xlabel("share of the latency, %")
    return figure


def markdown(scales: list[dict[str, Any]], curves: list[dict[str, Any]], shares: dict[str, float]) -> str:
    """Render all three."""
    medians = {kind: float(np.median([abs(r["gate_gradient"]) for r in scales if r["type"] == kind])) for kind in TYPES}
    lines = [
        "# The observations behind BoundaryDPT, on DeiT-Tiny",
        "",
        f"`{command()}`",
        "",
        f"Median |gate gradient|: attention {medians['attention']:.4f}, activation {medians['activation']:.4f}, "
        f"a ratio of {medians['attention'] / medians['activation']:.2f}.",
        "",
        "![Gate gradients](observations_scales.png)",
        "",
        f"Top-1 on {HELD_OUT} held-out training images before and after each epoch of {IMAGES_PER_EPOCH} images:",
        "",
        "| removed | left in their place | top-1 |",
        "|---|---|---|",
        *(
            f"| {REMOVED} {r['type']}s | {r['replace']} | {', '.join(f'{value:.1f}' for value in r['top1'])} |"
            for r in curves
        ),
        "",
        "![Recovery by type](observations_recovery.png)",
        "",
        "Latency that goes when all layers of a type are skipped: "
        + ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        + ".",
        "",
        "![Latency by type of layer](observations_latency.png)",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, draw and write."""
    shares, scales, curves = latency_by_layer(), gradient_scales(), recoveries()
    figures = {"scales": plot_scales(scales), "recovery": plot_recoveries(curves), "latency": plot_latency(shares)}
    for name, figure in figures.items():
        figure.savefig(RESULTS / f"observations_{name}.png", dpi=110)
    result = {"gate_gradients": scales, "recoveries": curves, "latency_shares": shares, "seed": 1}
    write("observations", result, markdown(scales, curves, shares))


if __name__ == "__main__":
    main()
