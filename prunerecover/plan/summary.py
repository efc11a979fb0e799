"""A plan in a few lines: removed units, requested and actual share, and divergence of the output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from prunerecover.cost.units.cost_names import titled
from prunerecover.display.summary import Summary, listed
from prunerecover.plan.edits import Edit, Refit
from prunerecover.plan.evidence import (
    BoundaryEvidence,
    BudgetEvidence,
    DepthEvidence,
    FrontierEvidence,
    SplitEvidence,
    ToleranceEvidence,
)
from prunerecover.plan.kept_groups import KeptGroup
from prunerecover.plan.kinds import WIDTH_KINDS
from prunerecover.plan.records import MadeBy, Result

Row = tuple[str, str, str, str]


class Planned(Protocol):
    """The attributes of a plan needed in a summary."""

    @property
    def removed(self) -> Mapping[str, Sequence[str]]:
        """Names of the removed units by kind."""

    @property
    def kept_groups(self) -> Sequence[KeptGroup]:
        """Kept units of groups."""

    @property
    def edits(self) -> Sequence[Edit]:
        """Edits, in order."""

    @property
    def result(self) -> Result:
        """Model after the plan."""

    @property
    def made_by(self) -> MadeBy:
        """Provenance."""

    @property
    def evidence(self) -> Mapping[str, Any]:
        """Evidence of the decisions."""


def summarised(plan: Planned) -> Summary:
    """Return the summary of a plan.

    >>> from prunerecover.plan.plan import Plan
    >>> from prunerecover.plan.edits import Remove
    >>> print(summarised(Plan(edits=(Remove(unit="blocks.3", kind="block"),))).text())
    Plan by hand
           goes  of  which
    block  1         blocks.3
    """
    left = [f"{plan.result.params:,} parameters"] if plan.result.params else []
    left += [f"{plan.result.macs:,} MACs per sample"] if plan.result.macs else []
    title = f"Plan by {plan.made_by.method or 'hand'}" + (f", which leaves {' and '.join(left)}" if left else "")
    rows = [*_units(plan), *_refitted(plan), *_shares(plan), *_scores(plan)] if plan.edits else []
    return Summary.of_list(title if rows else "Plan of nothing", ("", "goes", "of", "which"), rows, tuple)


def _units(plan: Planned) -> Iterator[Row]:
    there = Counter[str](DepthEvidence.of(plan.evidence).units.values())
    groups = plan.kept_groups
    for kind, names in plan.removed.items():
        if kind in WIDTH_KINDS:
            own = [group for group in groups if group.kind == kind]
            size, which = sum(group.size for group in own), [f"{g.name} {g.size - g.kept}" for g in own if g.share < 1]
        else:
            size, which = there[kind], list(names)
        yield kind, f"{len(names):,}", f"{size:,}" if size else "", listed(which)


def _refitted(plan: Planned) -> Iterator[Row]:
    """Yield the modules with refitted weights."""
    paths = dict.fromkeys(edit.unit for edit in plan.edits if isinstance(edit, Refit))
    if paths:
        yield "refitted", "", f"{len(paths):,}", listed(paths)


def _shares(plan: Planned) -> Iterator[Row]:
    """Yield the removed share of each cost, beside the requested share; no row for a plan of several."""
    for cost, saved in saved_shares(plan).items():
        asked = plan.made_by.arguments["budget"][cost]
        said = f"at most {asked} left" if isinstance(asked, str) else f"{asked:.1%}"
        yield titled(cost), f"{saved:.1%}", "", f"asked for: {said}"


def saved_shares(plan: Planned) -> dict[str, float]:
    """Return the removed share of each cost in the budget of a plan, once merged; empty if unknown."""
    budget, shares = plan.made_by.arguments.get("budget"), BudgetEvidence.of(plan.evidence).removed_share
    return {cost: share.merged for cost, share in shares.items() if isinstance(budget, dict) and cost in budget}


def _scores(plan: Planned) -> Iterator[Row]:
    """Yield the scores behind the plan."""
    split = SplitEvidence.of(plan.evidence)
    alike = [s for s in split.splits if s.depth == split.depth_share]
    chosen = alike[-1:] if split.picked is None else list(split.splits[split.picked :][:1])
    divergences: Sequence[float | None] = [s.divergence for s in chosen]
    if plan.made_by.method.startswith("depth/"):
        divergences = list(DepthEvidence.of(plan.evidence).divergence.values())
    if divergences and divergences[-1] is not None:
        yield "divergence", f"{divergences[-1]:.3g}", "", "of the output"
    if chosen and chosen[-1].score is not None:
        yield "score", f"{chosen[-1].score:.4g}", "", "of the pruned network, by the given function"
    if (tolerance := ToleranceEvidence.of(plan.evidence).tolerance) is not None:
        yield "tolerance", f"{tolerance:.3g}", "", "of difference of the two rankings"
    if (predicted := BoundaryEvidence.of(plan.evidence).predicted) is not None:
        yield "accuracy", f"{predicted.accuracy:.2f}%", "", "predicted after recovery"
    if frontier := FrontierEvidence.of(plan.evidence).frontier:
        yield "frontier", "", "", ", ".join(f"{one.divergence:.2g} at {one.share:.0%}" for one in frontier)
