"""The searches of `plan_depth`: all units ranked once, or one removed at a time and the others ranked again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from prunerecover.calibration.calibrator import Calibrator, Choice
from prunerecover.calibration.candidates import Candidate
from prunerecover.depth.selection import check_comparable, cost_of, is_inside, select_by_cost, select_by_count
from prunerecover.display.progress import progress
from prunerecover.families.describe import describe
from prunerecover.importance.registry import RegisteredImportance, check_unit_scores
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Edit, Remove, Replace
from prunerecover.plan.kinds import TRAITS
from prunerecover.plan.units import Unit
from prunerecover.surgery.merging import block_removals
from prunerecover.surgery.saved_cost import DenseCost

SELECTIONS = 4  # that are tried to come near to a share of the cost; more only until one reaches it
SCORED_TOGETHER = 4  # units that share the run through the blocks before them


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
        saving = saving_if_left(dense, left)
        with progress("measuring what units cost"):
            selected = select_by_cost(units, scores, dense.cost, goal, saving)
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


def smallest_share(units: Sequence[Unit], saving: Callable[[Sequence[Unit]], float], cost: str) -> float:
    """Return the share of the cost that goes with the smallest unit."""
    return saving([min((u for u in units if cost_of(u, cost)), key=lambda u: cost_of(u, cost))])


@dataclass
class SearchCache:
    """What greedy searches for several budgets of one model have in common: they begin alike.

    Attributes:
        scores: Divergence of each further unit, by the units that are gone.
        choices: What units leave, by the units.
    """

    scores: dict[frozenset[Unit], dict[str, float]] = field(default_factory=dict)
    choices: dict[frozenset[Unit], list[Choice]] = field(default_factory=dict)

    def score(self, calibrator: Calibrator, units: Sequence[Unit], gone: Sequence[Choice]) -> dict[str, float]:
        """Return the output divergence of each unit alone, on top of what is gone, by name.

        Args:
            calibrator: Scores what is not known yet.
            units: To score.
            gone: The units that were removed before, and what they leave.

        Raises:
            ValueError: If a divergence is NaN or infinite.
        """
        known = self.scores.setdefault(frozenset(choice.unit for choice in gone), {})
        new = [u for u in units if u.name not in known]
        if new:
            found = {name: choice.divergence for name, choice in calibrator.score(new, gone).items()}
            check_unit_scores(found, "output_divergence")
            known |= found
        return {u.name: known[u.name] for u in units}

    def choose(self, calibrator: Calibrator, units: Sequence[Unit], known: Sequence[Choice]) -> list[Choice]:
        """Return what the units leave.

        Args:
            calibrator: Fits what is not known yet.
            units: All that are gone, the latest one last.
            known: What all but the latest leave without it; those before it in depth are not fitted again.
        """
        key = frozenset(units)
        if key not in self.choices:
            self.choices[key] = calibrator.choose(units, known=known)
        return self.choices[key]


def greedy(
    calibrator: Calibrator, units: Sequence[Unit], budget: Budget, cache: SearchCache
) -> tuple[dict[str, float], list[Choice]]:
    """Remove the unit of least divergence, fit all again, and score the others on the pruned model, in turn.

    Only those that may be the least are scored again (lazy greedy, Minoux 1978): a unit hardly ever matters less once
    others are gone, so its score from an earlier round bounds the new one from below. This is exact as long as that
    holds, and 3 to 6 times faster.

    Args:
        calibrator: Scores units and fits what they leave.
        units: To choose from.
        budget: In units.
        cache: What searches for other budgets of the model have found; this one adds to it.

    Returns:
        The scores of the first round, and the choices.

    Raises:
        ValueError: If the budget asks for more units than can go together.
    """
    wanted = budget.counts(count_by_kind(units))
    order: list[Unit] = []
    chosen: list[Choice] = []
    first: dict[str, float] = {}
    known: dict[str, float] = {}
    with progress("removing one unit after the other", sum(wanted.values())) as advance:
        while left := _removable(units, wanted, order):
            # What holds other units goes first: small units must not use up its places.
            most = max(len(TRAITS[u.kind].holds) for u in left)
            candidates = [u for u in left if len(TRAITS[u.kind].holds) == most]
            if not known:
                first = cache.score(calibrator, left, chosen)
                known |= first
            order.append(_least(calibrator, candidates, chosen, cache, known))
            chosen = cache.choose(calibrator, order, chosen)
            advance()
    short = {kind: n - sum(u.kind == kind for u in order) for kind, n in wanted.items()}
    short = {kind: n for kind, n in short.items() if n > 0}
    if short:
        raise ValueError(
            f"Expected enough units outside the other removed ones for {short} more, but none is left. Lower it."
        )
    return first, chosen


def _least(
    calibrator: Calibrator, units: Sequence[Unit], gone: Sequence[Choice], cache: SearchCache, known: dict[str, float]
) -> Unit:
    """Return the unit of least divergence, and note the scores that this took in `known`."""
    fresh: dict[str, float] = {}
    waiting = sorted(units, key=lambda u: known[u.name])
    while waiting and (not fresh or known[waiting[0].name] < min(fresh.values())):
        together, waiting = waiting[:SCORED_TOGETHER], waiting[SCORED_TOGETHER:]
        fresh |= cache.score(calibrator, [u for u in units if u in together], gone)
    known |= fresh
    return min((u for u in units if u.name in fresh), key=lambda u: fresh[u.name])


def edits_of(model: nn.Module, chosen: Iterable[tuple[Unit, Candidate]]) -> tuple[list[Edit], dict[str, Tensor]]:
    """Turn choices into sequential edits and their tensors; blocks go last, from the end."""
    edits: list[Edit] = []
    tensors: dict[str, Tensor] = {}
    blocks = []
    for unit, candidate in chosen:
        edit = candidate.edit
        if unit.kind == "block":
            blocks.append(describe(model).block_of(unit.name))
            continue
        if isinstance(edit, Replace) and candidate.values:
            keyed = {f"e{len(edits)}.{name}": value for name, value in candidate.values.items()}
            tensors |= {key: value.detach().float().cpu() for key, value in keyed.items()}
            edit = edit.model_copy(update={"tensors": tuple(keyed)})
        edits.append(edit)
    return [*edits, *block_removals(model, blocks)], tensors


def saving_if_left(dense: DenseCost, left: Mapping[str, str]) -> Callable[[Sequence[Unit]], float]:
    """Return a function that measures the share of the cost that goes with some units.

    Args:
        dense: What the model costs; nothing is fitted.
        left: What units leave, by name or by kind; those that are not there leave nothing.
    """
    bare = {"activation": "identity"}

    def candidate(unit: Unit) -> Candidate:
        leaves = left.get(unit.name, left.get(unit.kind, bare.get(unit.kind, "zero")))
        if unit.kind == "block" or leaves == "zero":
            return Candidate(Remove(unit=unit.name, kind=unit.kind))  # type: ignore[arg-type]
        return Candidate(Replace(unit=unit.name, kind=unit.kind, leaves=leaves))  # type: ignore[arg-type]

    def share(units: Sequence[Unit]) -> float:
        edits, _ = edits_of(dense.model, ((u, candidate(u)) for u in units))
        return dense.removed_share(edits)

    return share


def count_by_kind(units: Sequence[Unit]) -> dict[str, int]:
    """Return how many units there are of each kind."""
    return {kind: sum(u.kind == kind for u in units) for kind in {u.kind for u in units}}


def _removable(units: Sequence[Unit], wanted: Mapping[str, int], gone: Sequence[Unit]) -> list[Unit]:
    """Units of kinds whose count is not met, neither gone, nor inside what is gone, nor around it."""
    missing = {kind for kind, n in wanted.items() if sum(u.kind == kind for u in gone) < n}
    return [
        u for u in units if u.kind in missing and not any(u == g or is_inside(u, g) or is_inside(g, u) for g in gone)
    ]
