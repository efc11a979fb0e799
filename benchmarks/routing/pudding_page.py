"""The page of the benchmark of prompt-routed depth."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from benchmarks.data.real import command, made_by
from benchmarks.routing.pudding_routers import EVERY
from prunerecover.display.markdown import table

HEADS = {"learnt": "Tasks that sets and router have learnt", "left out": "Tasks that neither has seen"}
STATIC = ("set", "blocks gone", "accuracy", "best static ahead", "log-likelihood per token", "best static ahead")
ROUTED = ("router", "seed", "metric", "best static", "routed", "oracle", "routed ahead", "gap closed")


MEANS = ("sets", "router", "accuracy, best static", "routed", "log-likelihood, best static", "routed", "gap closed")


def markdown(blocks: dict[str, frozenset[int]], said: str, found: dict[str, Any]) -> str:
    """Render the page.

    Args:
        blocks: That each set removes.
        said: How the figures were made.
        found: What was measured: what the JSON holds.
    """
    lines = ["# Prompt-routed depth on SmolLM2-135M", "", *made_by([command()]), said]
    for tasks, title in HEADS.items():
        alone = [row for row in found["static"] if row["tasks"] == tasks]
        routers = [row for row in found["routed"] if row["tasks"] == tasks]
        each = [row for row in routers if row["sets"] == EVERY]
        lines += ["", f"## {title}", "", f"{alone[0]['n']} questions. One set for every prompt:", ""]
        lines += [table(STATIC, [_static(row, blocks) for row in alone]), ""]
        lines += [
            "Routed, means over seeds, the least and the most of them in brackets:",
            "",
            table(MEANS, _means(routers)),
        ]
        lines += ["", "Every router over all sets:", "", table(ROUTED, [_routed(row) for row in each])]
    return "\n".join([*lines, ""])


def _means(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a line for each choice of sets and each loss."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["sets"], row["loss"] + (", shuffled" if row["shuffled"] else "")), []).append(row)
    return [(*about, *_mean_cells(own)) for about, own in groups.items()]


def _mean_cells(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what a line says of routers of several seeds."""
    right = [row for row in rows if row["metric"] == "accuracy"]
    likely = [row for row in rows if row["metric"] != "accuracy"]
    return [
        f"{100 * right[0]['static']:.1f}",
        _spread([100 * row["routed"] for row in right], "{:.1f}"),
        f"{likely[0]['static']:.3f}",
        _spread([row["routed"] for row in likely], "{:.3f}"),
        _spread([row["gap_closed"] for row in likely], "{:.0%}"),
    ]


def _spread(values: Sequence[float], digits: str) -> str:
    mean, low, high = (digits.format(value) for value in (fmean(values), min(values), max(values)))
    return f"{mean} ({low} to {high})"


def _static(row: dict[str, Any], blocks: dict[str, frozenset[int]]) -> tuple[str, ...]:
    return (
        row["set"] + (" (best static)" if row["best"] else ""),
        " ".join(map(str, sorted(blocks[row["set"]]))),
        _cell(row, "accuracy", 100, 1),
        _ahead(row, "accuracy", 100, 1),
        _cell(row, "likelihood", 1, 3),
        _ahead(row, "likelihood", 1, 3),
    )


def _routed(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["loss"] + (", shuffled" if row["shuffled"] else ""),
        str(row["seed"]),
        row["metric"],
        f"{row['static']:.4f}",
        f"{row['routed']:.4f}",
        f"{row['oracle']:.4f}",
        f"{row['gain']:+.4f} ({row['gain_low']:+.4f} to {row['gain_high']:+.4f})",
        f"{row['gap_closed']:.0%}",
    )


def _cell(row: dict[str, Any], name: str, scale: float, digits: int) -> str:
    value, low, high = (f"{scale * row[key]:.{digits}f}" for key in (name, f"{name}_low", f"{name}_high"))
    return f"{value} ({low} to {high})"


def _ahead(row: dict[str, Any], name: str, scale: float, digits: int) -> str:
    if row["best"]:
        return ""
    keys = (f"ahead_{name}", f"ahead_{name}_low", f"ahead_{name}_high")
    value, low, high = (f"{scale * row[key]:+.{digits}f}" for key in keys)
    return f"{value} ({low} to {high})"
