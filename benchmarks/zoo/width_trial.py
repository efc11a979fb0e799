"""A network of the zoo pruned in width, or jointly: planned with default arguments for 30% of the MACs.

If the refusal names a smaller maximum, half of the maximum is the budget instead. The outcome is "ok" only if the
really removed share is the budget, or if a warning names both.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.zoo.networks.network import Network
from benchmarks.zoo.networks.suites import networks_of
from benchmarks.zoo.trial import (
    SEED,
    Ended,
    Row,
    batches,
    dense,
    ended,
    parts_of,
    silently,
    stage,
    timed,
    trained_and_saved,
)
from prunerecover import Budget, Plan, apply_plan, plan_pruning, plan_width
from prunerecover.cost.macs import count_macs
from prunerecover.model.batches import without_labels
from prunerecover.refusal import Refusal

ASKED, MISS = 0.3, 0.02
NOTHING = "to have groups of kind"  # words of the error without units to prune
AT_MOST = re.compile(r"at most ([\d.]+)%(?: of the macs)? can go")  # words on a budget beyond the maximum


def pruned(suite: str, name: str, folder: Path) -> Row:
    """Return the row of a network pruned in width."""
    return pruned_by(plan_width, suite, name, folder)


def pruned_jointly(suite: str, name: str, folder: Path) -> Row:
    """Return the row of a network pruned in depth and width."""
    return pruned_by(plan_pruning, suite, name, folder)


def pruned_by(planned: Callable[..., Plan], suite: str, name: str, folder: Path) -> Row:
    """Plan, apply, train and save a network; save its outputs, too, and return entries for the row."""
    network = networks_of(suite)[name]
    model, given = dense(network, SEED), batches(network)
    example = without_labels(given[0])
    before = count_macs(model, example)
    row: Row = {"asked": ASKED}
    try:
        with timed(row):
            plan, told = _planned(planned, model, given, network, row)
        with stage("apply_plan"):
            apply_plan(model, plan)
        removed = 1 - count_macs(model, example) / before
        row["dead"] = trained_and_saved(model, plan, given, network, folder)
    except Ended as end:
        return {**row, **end.row}
    found = judged(removed, told, row["asked"])
    if found["outcome"] == "ok":
        found |= silently(row["dead"], row["planning_seconds"])
    return {**row, **found, "removed": removed}


def judged(removed: float, told: Sequence[str], asked: float = ASKED) -> Row:
    """Return the outcome of a really removed share of the MACs, given the warnings of planning.

    >>> judged(0.31, [])
    {'outcome': 'ok'}
    >>> judged(0.35, [])
    {'outcome': 'over', 'reason': '35.0% of the MACs are gone instead of 30.0%, and no warning says so'}
    >>> judged(0.25, [])["outcome"]
    'failed'
    >>> judged(0.35, ["Asked for 30% of the MACs, 35.0% go."])["outcome"]
    'ok'
    """
    if abs(removed - asked) <= MISS:
        return {"outcome": "ok"}
    named = next((text for text in told if _names(text, asked) and _names(text, removed)), None)
    if named is not None:
        return {"outcome": "ok", "warned": named}
    reason = f"{removed:.1%} of the MACs are gone instead of {asked:.1%}, and no warning says so"
    return {"outcome": "over" if removed > asked else "failed", "reason": reason}


def _names(text: str, share: float) -> bool:
    return any(abs(float(number) / 100 - share) < 0.006 for number in re.findall(r"(\d+(?:\.\d+)?) ?%", text))


def _planned(
    planned: Callable[..., Plan], model: nn.Module, given: list[Any], network: Network, row: Row
) -> tuple[Plan, list[str]]:
    """Return the plan by default arguments, and the warnings; note the budget in the row, and the reason if reduced."""
    loss = {} if network.loss is None else {"loss": network.loss}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            plan = planned(model, Budget(macs=row["asked"]), batches=given, **loss)
        except Exception as error:
            most = AT_MOST.search(str(error)) if isinstance(error, Refusal) and "less" not in row else None
            if most is not None and float(most[1]) > 0:
                row |= {"asked": round(float(most[1]) / 200, 4), "less": str(error), "less_parts": parts_of(error)}
                return _planned(planned, model, given, network, row)
            raise ended(planned.__name__, error, NOTHING) from error
    return plan, [str(warning.message) for warning in caught]
