"""Markdown page beside a plan in width: the kept units of every group, and the evidence of a plan by tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prunerecover.display.markdown import table
from prunerecover.plan.evidence import SearchEvidence, ToleranceEvidence, UniformComparison, WidthEvidence
from prunerecover.plan.kept_groups import KeptGroup
from prunerecover.plan.kinds import plural
from prunerecover.plan.plan import Plan
from prunerecover.width.allocation.cost_model import Cost

COSTS = {"macs": "MACs", "params": "number of parameters"}


def page(plan: Plan, dense: Cost, file: str, figures: Mapping[str, str]) -> str:
    """Return the page.

    Args:
        plan: Plan with the evidence of `plan_width`, and the cost of the search.
        dense: Cost of the dense network.
        file: Name of the plan's file.
        figures: File names by title.
    """
    groups = plan.kept_groups
    parts = [
        "# Which units go",
        _summary(plan, dense, groups),
        *(f"![{title}]({name})" for title, name in figures.items()),
        "## What every group keeps",
        table(("group", "units", "kept", "of", "share"), map(_row, groups)),
    ]
    found = ToleranceEvidence.of(plan.evidence)
    if found.tolerance is not None:
        parts += _by_tolerance(found, plan.made_by.arguments)
    return "\n\n".join([*parts, "## What next", _next_steps(plan, file)]) + "\n"


def _summary(plan: Plan, dense: Cost, groups: Sequence[KeptGroup]) -> str:
    size, kept = sum(group.size for group in groups), sum(group.kept for group in groups)
    told = {k: v for k, v in plan.made_by.arguments.items() if v is not None}
    arguments = ", ".join(f"{name}={value!r}" for name, value in told.items())
    return (
        f"{size - kept:,} of {size:,} units go. MACs per sample: {dense.macs:,} before, {plan.result.macs:,} after "
        f"({_change(dense.macs, plan.result.macs)}). Parameters: {dense.params:,} before, {plan.result.params:,} after "
        f"({_change(dense.params, plan.result.params)}).\n\n"
        f"Planned by `{plan.made_by.method}` with `{arguments}`, seed {plan.made_by.seed}."
        f"{_weighing(WidthEvidence.of(plan.evidence))}"
    )


def _weighing(evidence: WidthEvidence) -> str:
    """Describe the weights of kinds beside each other, if weights were chosen."""
    if not evidence.rates:
        return ""
    (first, _), *others = evidence.rates.items()
    told = " and ".join(f"that of {plural(kind)} {rate:g} times" for kind, rate in others)
    told = f"{told}, with damping {evidence.damping:g}"
    return f" Beside the importance of {plural(first)} counts {told}: the least change of the output among all trials."


def _change(before: int, after: int) -> str:
    return f"{100 * (after / before - 1):+.1f}%"


def _row(group: KeptGroup) -> tuple[object, ...]:
    return f"`{group.name}`", plural(group.kind), group.kept, group.size, f"{group.share:.0%}"


def _by_tolerance(evidence: ToleranceEvidence, arguments: Mapping[str, Any]) -> list[str]:
    return [
        "## Tolerance",
        _tolerance(evidence),
        "Kept units at other tolerances, with the same scores:",
        table(("tolerance", "units kept"), ((t, f"{kept:.1%}") for t, kept in evidence.kept_by_tolerance.items())),
        "## Protected score that goes",
        f"Sum of the `{arguments['importance'][-1]}` of removed units among the equally many best protected units of "
        "the group, and the bound from the ranks alone. The closer the two, the worse the pick.",
        _protected(evidence.protected_mass),
        "## Against uniform pruning",
        _exchange(evidence.exchange, COSTS[evidence.compared_by]),
    ]


def _tolerance(evidence: ToleranceEvidence) -> str:
    text = f"Tolerance of Difference: {evidence.tolerance:.4g}"
    if evidence.share == 1:
        return f"{text}. At most this share of a group's removed units is among its equally many best protected units."
    return f"{text}, the smallest tolerance for the budget. The groups go {evidence.share:.0%} of the way there."


def _protected(masses: Mapping[str, Sequence[float]]) -> str:
    rows = [(f"`{name}`", f"{entered:.3g}", f"{bound:.3g}") for name, (entered, bound) in masses.items() if bound > 0]
    if not rows:
        return "None: no group loses any of its best protected units."
    return table(("group", "goes", "bound"), rows)


def _exchange(found: UniformComparison | None, cost: str) -> str:
    if found is None:
        return f"Not comparable: the same {cost} cannot be saved by removing the same share of every group."
    holds = found.taken <= found.spared
    return (
        f"At the same {cost}, by the same order, beside uniform pruning: the units removed by this plan alone have a "
        f"score of {found.taken:.3g}, the units removed by uniform pruning alone a score of {found.spared:.3g}. "
        f"The exchange condition {'holds' if holds else 'fails'}: to first order, this plan "
        f"{'loses no more than' if holds else 'loses more than'} uniform pruning."
    )


def _next_steps(plan: Plan, file: str) -> str:
    cost = SearchEvidence.of(plan.evidence).search
    assert cost is not None, "the command line has measured"
    return (
        f"`WidthPrune(plan: {file})` in a recipe's callbacks applies the plan and lets the fit recover. Networks with "
        "BatchNorm are reconstructed layer by layer first, and their statistics estimated anew: neither is part of the "
        "plan.\n\n"
        f"Planning took {cost.seconds:.1f} s; peak memory {(cost.peak_memory_bytes or 0) / 2**20:,.0f} MiB."
    )
