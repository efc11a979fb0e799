"""Rows of the benchmark of depth on the computation graph: appended as they are made, and read back by later runs.

A row says what one method left of one model, as one figure with its interval. Rows lie in a JSONL file, one line each,
with the score of every sample, so that later rows can be compared with them on the same samples; the JSON beside the
page holds them without.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from benchmarks.data.real import CHECKPOINTS, RESULTS, command, kept_plan, packed, packed_numbers, unpacked
from benchmarks.data.real import unpacked_numbers as numbers
from prunerecover import Plan, apply_plan, merge
from prunerecover.cost.macs import count_macs
from prunerecover.cost.statistics import mean_interval, paired_difference
from prunerecover.depth.layers.removals import Removals
from prunerecover.graph.trace import trace
from prunerecover.model.batches import ModelInputs
from prunerecover.model.copies import deep_copy
from prunerecover.surgery.provenance import plan_for

NAME = "graph_depth"
ROWS = RESULTS / f"{NAME}.rows.jsonl"
PLANS = CHECKPOINTS / NAME
Row = dict[str, Any]


def rows_so_far(path: Path = ROWS, **where: Any) -> list[Row]:
    """Return the rows that earlier runs left in a file, with these entries."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return [row for row in map(json.loads, lines) if all(row.get(key) == value for key, value in where.items())]


def add(row: Row, path: Path = ROWS) -> Row:
    """Append a row to a file, with the command that made it."""
    with path.open("a") as file:  # one write of one line: processes may append side by side
        file.write(json.dumps({**row, "command": command()}) + "\n")
    return row


def measured(scores: Sequence[float] | NDArray[np.float64], seed: int, **what: Any) -> Row:
    """Return a row whose value is the mean of scores, with its 95% interval over the samples.

    Args:
        scores: One per sample: an image, a text or a question.
        seed: Of the run, and of the bootstrap.
        what: All other entries.
    """
    values = np.asarray(scores, dtype=np.float64)
    found = mean_interval(values, seed=seed)
    binary = bool(np.isin(values, (0, 1)).all())
    kept = {"hits": packed(values)} if binary else {"scores": packed_numbers(values)}
    interval = {"value": found.value, "ci_low": found.low, "ci_high": found.high, "n": len(values), "seed": seed}
    return {**what, **interval, **kept}


def scores_of(row: Row) -> NDArray[np.float64]:
    """Return the score of every sample of a row."""
    return unpacked(row["hits"], row["n"]) if "hits" in row else numbers(row["scores"])


def without_samples(row: Row) -> Row:
    """Return a row without the scores of its samples."""
    return {key: value for key, value in row.items() if key not in ("hits", "scores")}


def difference(ours: Sequence[Row], theirs: Sequence[Row], scale: float = 1.0, digits: int = 3) -> str:
    """Return ours minus theirs over the same samples, the mean over the seeds that both have, with its paired interval.

    Args:
        ours: Rows of one method, one per seed.
        theirs: Of the other.
        scale: 100 for percent.
        digits: Behind the point.
    """
    seeds = sorted({row["seed"] for row in ours} & {row["seed"] for row in theirs})
    if not seeds:
        return ""
    means = [np.mean([scores_of(r) for r in rows if r["seed"] in seeds], axis=0) for rows in (theirs, ours)]
    found = paired_difference(*means, seed=0)
    value, low, high = (f"{scale * number:+.{digits}f}" for number in (found.value, found.low, found.high))
    return f"{value} ({low} to {high})"


def pruned(network: nn.Module, plan: Plan) -> nn.Module:
    """Return a copy after a plan, merged."""
    copied = deep_copy(network).eval()
    apply_plan(copied, plan)
    merge(copied)
    return copied


def shares(dense: nn.Module, other: nn.Module, example: Any) -> Row:
    """Return the shares of the parameters and MACs that are left."""
    params, macs = ([cost(network) for network in (dense, other)] for cost in (_parameters, _macs_of(example)))
    return {"params_share": params[1] / params[0], "macs_share": macs[1] / macs[0]}


def saved_plan(name: str, make: Callable[[], Plan], folder: Path = PLANS) -> Plan:
    """Return the plan that an earlier run kept under a name in a folder, or make it."""
    folder.mkdir(parents=True, exist_ok=True)
    return kept_plan(folder / f"{name}.json", make)


def planned_before(network: nn.Module, example: ModelInputs, kinds: Sequence[str], row: Row) -> Plan:
    """Return the plan on the graph of the units that a row says went, in the order in which they went.

    Args:
        network: Dense.
        example: One sample.
        kinds: Of the units that were looked for.
        row: Of an earlier run.
    """
    removals = Removals(network, trace(network, example), kinds)
    units = {unit.name: unit for unit in removals.units}
    chosen = [units[name] for names in row["removed"].values() for name in names]
    return plan_for(network, removals.edits(chosen), method=row["method"])


def _parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def _macs_of(example: Any) -> Callable[[nn.Module], int]:
    return lambda network: count_macs(network, example)
