"""Scores of every unit of depth and every group of width, with their savings: a table, a picture, and saved scores.

The scores are by-products of planning: the output divergence of each unit alone (`plan_depth`) and the importance of
each channel, head, neuron or expert (`plan_width`). Saved scores serve every later budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from prunerecover.depth.arguments import DepthConfig, kinds_of
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.display.markdown import table
from prunerecover.display.progress import progress
from prunerecover.display.summary import Summarised, Summary
from prunerecover.importance.measuring.losses import Loss
from prunerecover.importance.measuring.names import name_of
from prunerecover.importance.saved_scores import SavedScores
from prunerecover.model.batches import Batches
from prunerecover.plan.kinds import DEPTH_KINDS, RANKED_KINDS, WIDTH_KINDS, kinds_among, plural
from prunerecover.sensitivity_table.rows import PARTS, GroupRow, UnitRow
from prunerecover.session.session import Session
from prunerecover.width.allocator import WidthAllocator
from prunerecover.width.arguments import WidthConfig
from prunerecover.width.groups.discovery import FOUND_KINDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = TypeVar("Row", UnitRow, GroupRow)
Scored: TypeAlias = tuple[tuple[Row, ...], Mapping[str, Tensor]]
SMALLEST = 0.5  # budget that planners require, without effect on the scores


@dataclass(frozen=True)
class Sensitivity(Summarised):
    """Cost and importance of each unit.

    Attributes:
        units: Units of depth, in order of depth.
        groups: Groups of width, in order of depth.
        saved: Scores for `plan_depth` and `plan_width`; written by `save`.
        refused: Reasons for the absence of rows, by dimension "depth" or "width".
    """

    units: tuple[UnitRow, ...]
    groups: tuple[GroupRow, ...]
    saved: SavedScores
    refused: Mapping[str, str]

    def to_markdown(self) -> str:
        """Return both tables, lowest importance per saved cost first."""
        parts = ["# Sensitivity"]
        if self.units:
            parts += ["## Depth", _DEPTH, table(_DEPTH_HEAD, map(_depth_cells, sorted(self.units, key=_per_cost)))]
        if self.groups:
            ranked = sorted(self.groups, key=_importance_per_cost)
            parts += ["## Width", _WIDTH, table(_WIDTH_HEAD, map(_width_cells, ranked))]
        parts += [f"No {dimension}: {reason}" for dimension, reason in self.refused.items()]
        return "\n\n".join(parts) + "\n"

    def summary(self) -> Summary:
        """Return the rows of lowest importance per saved cost: units if present, else groups."""
        title = f"Sensitivity of {len(self.units)} units of depth and {len(self.groups)} groups of width"
        rows = [*map(_depth_cells, sorted(self.units, key=_per_cost))]
        rows = rows or [*map(_width_cells, sorted(self.groups, key=_importance_per_cost))]
        head = _DEPTH_HEAD if self.units else _WIDTH_HEAD
        return Summary.of_list(title, head, rows, lambda row: [cell.strip("`") for cell in row])

    def plot(self) -> Figure:
        """Return a figure over depth: the importance of every unit and group per saved cost."""
        from prunerecover.sensitivity_table.figure import plot_sensitivity

        return plot_sensitivity(self.units, self.groups)

    def save(self, path: str | Path) -> None:
        """Write the scores, for `plan_depth(..., scores=path)` and `plan_width(..., scores=path)`."""
        self.saved.save(path)


_DEPTH = (
    "Each unit alone, with its best replacement: the saved parameters and MACs, and the divergence of the output from "
    "the dense network's. Units interact: a search judges units on top of each other."
)
_DEPTH_HEAD = ("unit", "kind", "parameters", "MACs", "divergence", "per 1% of the MACs")
_WIDTH = (
    "The saved parameters and MACs without half of a group's units, and the shares of the importance of all groups in "
    "the group's lowest quarter, half and three quarters."
)
_WIDTH_HEAD = ("group", "units", "parameters", "MACs", *(f"lowest {part:.0%}" for part in PARTS))


def sensitivity(
    model: nn.Module,
    *,
    batches: Batches,
    kinds: Sequence[str] | None = None,
    loss: Loss | None = None,
    importance: str = "gate_taylor",
    replace: str = "calibrated",
    ignore: Sequence[str] = (),
    seed: int = 0,
) -> Sensitivity:
    """Score all removable units and groups; the model is bit-identical afterwards.

    Args:
        model: Network of any kind, wrapped or not.
        batches: Calibration batches, as of `plan_depth` and `plan_width`, with or without labels.
        kinds: Kinds of depth ("block", "attention", "mlp", "activation", "layer") and of width ("channel", "head",
            "neuron", "expert", "hidden"); None: the kinds of `plan_depth` and `plan_width`. Named kinds must exist in
            the network.
        loss: `loss(model, batch) -> scalar` for width; None: cross-entropy, or the loss returned by the model.
        importance: Importance for width; see `plan_width`.
        replace: Replacement of a unit of depth; see `plan_depth`.
        ignore: Shell patterns of units and groups that stay; each must match a name in every scored dimension.
        seed: Seed of all random draws.

    Raises:
        ValueError: If a kind is unknown, a named kind is absent, or no unit or group is removable.
    """
    session = Session.with_dense_reference(model, batches, loss=loss, seed=seed)
    return sensitivity_in(session, kinds=kinds, importance=importance, replace=replace, ignore=ignore)


def sensitivity_in(
    session: Session,
    *,
    kinds: Sequence[str] | None = None,
    importance: str = "gate_taylor",
    replace: str = "calibrated",
    ignore: Sequence[str] = (),
) -> Sensitivity:
    """Return the `sensitivity` of the network of a session.

    Args:
        session: Network and samples.
        kinds: Kinds of units and groups; see `sensitivity`.
        importance: Importance for width; see `sensitivity`.
        replace: Replacement of a unit of depth; see `sensitivity`.
        ignore: Shell patterns of units and groups that stay; see `sensitivity`.

    Raises:
        ValueError: See `sensitivity`.
    """
    network, seed = session.model, session.seed
    depth_kinds, width_kinds = _by_dimension(network, kinds)

    def depth() -> Scored[UnitRow]:
        return _depth(session, DepthConfig(kinds=depth_kinds, replace=replace, ignore=ignore, seed=seed))

    def width() -> Scored[GroupRow]:
        return _width(session, WidthConfig(kinds=width_kinds, importance=importance, ignore=ignore, seed=seed))

    with progress("scoring all that can go"):
        units, by_unit, no_depth = _rows(depth, depth_kinds, named=kinds is not None)
        groups, by_group, no_width = _rows(width, width_kinds, named=kinds is not None)
    scores = {name: by for name, by in (("output_divergence", by_unit), (name_of(importance), by_group)) if by}
    refused = {dimension: reason for dimension, reason in (("depth", no_depth), ("width", no_width)) if reason}
    if not scores:
        raise ValueError(" ".join(f"No {dimension}: {reason}" for dimension, reason in refused.items()))
    return Sensitivity(units, groups, SavedScores.of(network, scores), refused)


def _by_dimension(network: nn.Module, kinds: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the kinds of depth and the kinds of width."""
    if kinds is None:
        return kinds_of(network, None, None), FOUND_KINDS
    kinds = kinds_among(kinds, RANKED_KINDS)
    return tuple(k for k in kinds if k in DEPTH_KINDS), tuple(k for k in kinds if k in WIDTH_KINDS)


def _rows(
    score: Callable[[], Scored[Row]], kinds: Sequence[str], *, named: bool
) -> tuple[tuple[Row, ...], Mapping[str, Tensor], str]:
    """Return the rows and scores of a dimension, or the reason for their absence; raise if the kinds were named."""
    if not kinds:
        return (), {}, ""
    try:
        rows, scores = score()
    except ValueError as error:
        if named:
            raise
        return (), {}, str(error)
    return rows, scores, ""


def _depth(session: Session, config: DepthConfig) -> Scored[UnitRow]:
    planner = DepthSearch(session, config.kinds, config)
    scores = planner.rank()
    rows = []
    with progress("measuring what units save", len(planner.units)) as advance:
        for unit in planner.units:
            params, macs = (planner.costs.saved([unit], cost) for cost in ("params", "macs"))
            rows.append(UnitRow(unit.name, unit.kind, params, macs, scores[unit.name]))
            advance()
    return tuple(rows), {name: torch.tensor(value, dtype=torch.float64) for name, value in scores.items()}


def _width(session: Session, config: WidthConfig) -> Scored[GroupRow]:
    planner = WidthAllocator(session, config)
    (scores,) = planner.scores(*config.importances)
    total = sum(float(values.clamp_min(0).sum()) for values in scores.values())
    full, rows = planner.costs.full, []
    for group in planner.groups:
        left = planner.costs.total({group.name: group.size - group.size // 2})
        lowest = scores[group.name].clamp_min(0).sort().values
        held = tuple(float(lowest[: int(part * group.size)].sum()) / (total or 1.0) for part in PARTS)
        shares = 1 - left.params / full.params, 1 - left.macs / full.macs
        rows.append(GroupRow(group.name, group.kind, group.size, *shares, held))
    return tuple(rows), scores


def _per_cost(row: UnitRow) -> float:
    return row.divergence / row.macs if row.macs > 0 else math.inf


def _importance_per_cost(row: GroupRow) -> float:
    return row.held[1] / max(row.macs, row.params, 1e-12)


def _depth_cells(row: UnitRow) -> tuple[str, ...]:
    per_cost = _per_cost(row) / 100
    return (
        f"`{row.name}`",
        row.kind,
        f"{row.params:.1%}",
        f"{row.macs:.1%}",
        f"{row.divergence:.3g}" if math.isfinite(row.divergence) else "cannot go",
        f"{per_cost:.3g}" if math.isfinite(per_cost) else "",
    )


def _width_cells(row: GroupRow) -> tuple[str, ...]:
    size = f"{row.size} {plural(row.kind)}"
    return (f"`{row.name}`", size, f"{row.params:.1%}", f"{row.macs:.1%}", *(f"{share:.2%}" for share in row.held))
