"""A network of the zoo pruned in depth: three of its units are drawn, and as many of their kinds are removed.

`plan_depth` draws units of these kinds again, and refuses units that cannot go together: then the trial asks for a unit
less, and for another kind if not even a single one can go. The outcome is "ok" only if parameters or MACs are really
fewer, and equal to the plan's.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.networks.suites import networks_of
from benchmarks.zoo.trial import SEED, Ended, Row, batches, dense, ended, silently, stage, timed, trained_and_saved
from prunerecover import Plan, apply_plan, find_units, plan_depth
from prunerecover.cost.macs import count_macs
from prunerecover.depth.search.goals import free
from prunerecover.families.describe import describe, is_supported
from prunerecover.model.batches import ModelInputs, as_inputs, without_labels
from prunerecover.plan.kinds import DEPTH_KINDS
from prunerecover.plan.units import Unit

REMOVED = 3
NOTHING = "that may go, but there is none"  # words of the error without units
TOO_MANY = ("none is left that can go", "to stay, so that at most")  # words of errors on units that cannot go together


def pruned(suite: str, name: str, folder: Path) -> Row:
    """Plan, apply, train and save a network; save its outputs, too, and return entries for the row."""
    network = networks_of(suite)[name]
    model, given = dense(network, SEED), batches(network)
    sample = as_inputs(without_labels(given[0])).select(torch.tensor([0]))
    row: Row = {"outcome": "ok", "named": is_supported(model)}
    try:
        with timed(row):
            units = _units(model, given[0])
            row["units"] = dict(Counter(unit.kind for unit in units))
            wanted = drawn(units, len(describe(model).blocks) - 1 if row["named"] else len(units))
            plan = _planned(model, given, wanted, sorted({*row["units"]} - {*wanted}))
        row["asked"] = len(wanted)
        row["removed"] = {kind: list(names) for kind, names in plan.removed.items()}
        before = size(model, sample)
        with stage("apply_plan"):
            apply_plan(model, plan)
        row["saved"] = judged(before, size(model, sample), plan)
        row["dead"] = trained_and_saved(model, plan, given, network, folder)
    except Ended as end:
        return {**row, **end.row}
    gone = sum(len(names) for kind, names in row["removed"].items() if kind in wanted)
    more = {"outcome": "over", "reason": f"{gone} units go instead of {len(wanted)}"} if gone > len(wanted) else {}
    return {**row, **(more or silently(row["dead"], row["planning_seconds"]))}


def drawn(units: Sequence[Unit], most_blocks: int) -> list[str]:
    """Return the kinds of randomly drawn units, none inside another.

    Args:
        units: Units of a network.
        most_blocks: Largest number of blocks to remove.
    """
    taken: list[Unit] = []
    for unit in random.Random(SEED).sample([*units], len(units)):
        full = unit.kind == "block" and sum(other.kind == "block" for other in taken) >= most_blocks
        if len(taken) < REMOVED and not full and unit in free(units, taken):
            taken.append(unit)
    return [unit.kind for unit in taken]


def size(model: nn.Module, sample: ModelInputs) -> tuple[int, int]:
    """Return the parameters, and the MACs of a sample."""
    return sum(parameter.numel() for parameter in model.parameters()), count_macs(model, sample)


def judged(before: tuple[int, int], after: tuple[int, int], plan: Plan) -> list[float]:
    """Return the removed shares of the parameters and of the MACs.

    Raises:
        Ended: If the parameters differ from the plan's, if neither they nor the MACs are fewer than before
            (except for activations, whose replacements have slopes), or if the MACs are neither fewer nor equal to the
            plan's (routes to experts depend on the data).
    """
    (params, macs), said = after, plan.result
    only_activations = {*plan.removed} == {"activation"}
    fewer = params < before[0] or macs < before[1] or only_activations
    fewer = fewer and (macs < before[1] or macs == said.macs)
    if params != said.params or not fewer:
        told = f"of {before} parameters and MACs {after} are left, and the plan says {(said.params, said.macs)}"
        raise Ended("failed", f"apply_plan: {told}")
    return [1 - rest / whole if whole else 0.0 for whole, rest in zip(before, after, strict=True)]


def _units(model: nn.Module, batch: Any) -> tuple[Unit, ...]:
    try:
        found = find_units(model, batch, DEPTH_KINDS)
        if not found:  # planning says the cause and the way out
            plan_depth(model, remove=dict.fromkeys(DEPTH_KINDS, 1), batches=[batch], importance="random", seed=SEED)
    except Exception as error:
        raise ended("find_units", error, NOTHING) from error
    return found


def _planned(model: nn.Module, given: list[Any], kinds: list[str], others: Sequence[str]) -> Plan:
    """Return a plan of units of these kinds, of fewer if refused, or of another kind if none can go."""
    wanted = dict(Counter(kinds))
    try:
        return plan_depth(model, remove=wanted, batches=given, importance="random", seed=SEED)
    except Exception as error:
        if any(said in str(error) for said in TOO_MANY):
            if len(kinds) > 1:
                return _planned(model, given, kinds[:-1], others)
            if others:
                return _planned(model, given, [others[0]], others[1:])
        raise ended(f"plan_depth {wanted}", error, NOTHING) from error
