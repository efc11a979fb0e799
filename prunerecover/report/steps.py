"""The table of steps of a fit that pruned until a metric of validation fell."""

from __future__ import annotations

from prunerecover.checkpoint.ledger_record import QualityStep, QualityTrail
from prunerecover.cost.units.cost_names import COSTS, titled
from prunerecover.display.markdown import table

HEADER = ("epoch", "asked for", "cost left", "parameters", "right after surgery", "recovered", "")


def steps_of(trail: QualityTrail) -> str:
    """Return the steps as a section of Markdown: removed units, effect on the metric, and verdict."""
    reached = f" No other step came: {trail.ended}." if trail.ended else ""
    said = f"`{trail.monitor}` was {trail.dense:.4g} before the first step; {trail.worst:.4g} was asked for.{reached}"
    shown = table(HEADER, [_row(step) for step in trail.steps], "rrrrrrl")
    return f"## Until the metric falls\n\n{shown}\n\n{said}"


def _row(step: QualityStep) -> tuple[str, ...]:
    asked = ", ".join(
        f"{100 * n:.3g}% of the {titled(what)}" if what in COSTS else f"{n} {what}" for what, n in step.asked.items()
    )
    left = ", ".join(f"{share:.1%} of the {titled(cost)}" for cost, share in step.left.items())
    verdict = "" if step.kept is None else "kept" if step.kept else "taken back"
    metric = (_number(step.after_surgery), _number(step.recovered))
    return (str(step.epoch), asked, left, f"{step.params:,}", *metric, verdict)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
