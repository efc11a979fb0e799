"""Rank the units of a supported family once, and remove those that matter least."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from prunerecover.calibration.calibrator import Calibrator
from prunerecover.calibration.candidates import Choice
from prunerecover.depth.family.edits import edits_of, saving_if_left
from prunerecover.depth.search.selection import (
    check_comparable,
    count_by_kind,
    select_by_cost,
    select_by_count,
    smallest_share,
)
from prunerecover.display.progress import progress
from prunerecover.importance.registry import RegisteredImportance
from prunerecover.plan.budget import Budget
from prunerecover.plan.units import Unit
from prunerecover.surgery.saved_cost import DenseCost

SELECTIONS = 4  # that are tried to come near to a share of the cost; more only until one reaches it


def one_shot(
    calibrator: Calibrator,
    units: Sequence[Unit],
    scores: Mapping[str, float],
    budget: Budget,
    importance: RegisteredImportance,
    dense: DenseCost | None,
) -> list[Choice]:
    """Remove what matters least by `scores`.

    Args:
        calibrator: Fits what is left.
        units: To choose from.
        scores: Importance by unit name.
        budget: In units per kind or in a share of cost.
        importance: That made them: a share of cost over several kinds needs one that compares across kinds.
        dense: What the model costs, for a budget in a share of it.

    Raises:
        ValueError: If the budget cannot be met.
    """
    if dense is None or budget.share is None:
        return calibrator.choose(select_by_count(units, scores, budget.counts(count_by_kind(units))))
    check_comparable(units, importance)
    return _one_shot_by_cost(calibrator, units, scores, budget.share[1], dense)


def _one_shot_by_cost(
    calibrator: Calibrator,
    units: Sequence[Unit],
    scores: Mapping[str, float],
    share: float,
    dense: DenseCost,
) -> list[Choice]:
    """Select, fit, and select anew with what the fitted maps cost, until the merged model has little more removed.

    What units leave stays and costs something, which is known once it is fitted: of the units that were fitted by what
    they left, of others by what their kind left last.
    """
    left: dict[str, str] = {}
    best, least, goal = list[Choice](), 1.0, share
    for tried in itertools.count():
        saving = saving_if_left(dense, left, wanted=goal)
        with progress("measuring what units cost"):
            selected = select_by_cost(units, scores, dense.cost, goal, saving, len(calibrator.layout.blocks) - 1)
        chosen = calibrator.choose(selected)
        if dense.cost == "latency" or not selected:  # what a fitted map costs is below what a clock can tell
            return chosen
        edits, _ = edits_of(calibrator.model, ((c.unit, c.candidate) for c in chosen))
        removed = dense.removed_share(edits)
        if share <= removed <= least:
            best, least = chosen, removed
        if best and (tried >= SELECTIONS or least - share <= smallest_share(units, saving, dense.cost)):
            break
        found = {name: c.candidate.leaves for c in chosen for name in (c.unit.kind, c.unit.name)}
        known = found.items() <= left.items()
        if known and best:
            break
        if known or (tried >= SELECTIONS and not best):
            goal += share - removed
        left |= found
    return best
