"""Rendering of a report: the rows of the comparison, Markdown, and a table for the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from prunerecover.cost.latency import LatencyRatio
from prunerecover.cost.statistics import Interval
from prunerecover.cost.units.cost_names import titled
from prunerecover.display.markdown import table as markdown_table
from prunerecover.display.summary import Summary
from prunerecover.frontiers.frontier import frontier_table
from prunerecover.plan.evidence import FrontierEvidence, PlanningCost
from prunerecover.plan.kept_groups import KeptGroup
from prunerecover.plan.kinds import WIDTH_KINDS
from prunerecover.report.data import LoggedMetric, MetricComparison, PlanSummary, ReportData
from prunerecover.report.steps import steps_of

if TYPE_CHECKING:
    from rich.table import Table

Row = tuple[str, str, str, str]
HEADER: Row = ("", "dense", "pruned", "change")


def rows(report: ReportData) -> list[Row]:
    """Return the comparison as rows of name, dense, pruned, change.

    Costs change in percent of the dense model, accuracies in points. A logged metric has three values: dense, right
    after surgery, and recovered.
    """
    before, after = report.dense, report.pruned
    found = [
        _cost_row("Parameters", _si, before.parameters, after.parameters),
        _cost_row("MACs per sample", _si, before.macs_per_sample, after.macs_per_sample),
    ]
    if report.block_macs:
        first, second = (macs / before.batch_size for macs in report.block_macs)
        found.append(_cost_row("MACs in the blocks", _si, first, second))
    if report.latency:
        found += _latency_rows(report.latency)
    found.append(_cost_row("Weights", _mib, before.parameter_bytes, after.parameter_bytes))
    found.append(_cost_row("Peak activations", _mib, before.activation_bytes, after.activation_bytes))
    found += [_metric_row(name, metric) for name, metric in report.metrics.items()]
    return found + [_logged_row(name, metric) for name, metric in report.logged.items()]


def table(report: ReportData) -> Table:
    """Return the rows as a rich table."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(*HEADER)
    for column in shown.columns[1:]:
        column.justify = "right"
    for row in rows(report):
        shown.add_row(*map(Text, row))
    return shown


def summarised(report: ReportData) -> Summary:
    """Return the rows as a summary, metrics first, under a title with the removals."""
    removed = {} if report.plan is None else report.plan.removed
    counts = ", ".join(f"{len(units):,} {kind}" for kind, units in removed.items())
    title = f"Before and after pruning{f' ({counts})' if counts else ''}, on {report.dense.device_name}"
    found, costs = rows(report), -(len(report.metrics) + len(report.logged)) or None
    return Summary.of_list(title, HEADER, [*(found[costs:] if costs else ()), *found[:costs]], tuple)


def markdown(report: ReportData, figures: Iterable[str] = ()) -> str:
    """Return the whole report as Markdown."""
    parts = ["# Before and after pruning", markdown_table(HEADER, rows(report), "lrrr"), _how_measured(report)]
    if report.quality:
        parts.append(steps_of(report.quality))
    if report.plan:
        parts.append(_what_was_removed(report.plan))
    if report.plan and report.plan.frontier:
        parts.append(_other_budgets(report.plan.frontier))
    if report.planning_cost:
        parts.append(_planning_cost(report.planning_cost))
    images = [f"![{file}]({file})" for file in figures]
    if images:
        parts += ["## Figures", *images]
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    parts += ["## Environment", f"{report.dense.device_name}; {versions}."]
    return "\n\n".join(parts) + "\n"


def _how_measured(report: ReportData) -> str:
    before = report.dense
    lines = [
        "MACs count matrix products and convolutions, those of attention included. Peak activations are taken from the "
        f"{before.activation_source}. Everything on {before.device} in {before.dtype.removeprefix('torch.')}."
    ]
    if report.latency and report.time_over_macs is not None:
        lines.append(
            f"Both models were timed in {report.latency.pairs} interleaved pairs with {report.latency.threads} CPU "
            f"thread(s). The median of the pairs' ratios is what to quote, since the machine's drift cancels in it: "
            f"{1 / report.latency.ratio.value:.2f}x as fast, time share / MACs share {report.time_over_macs:.2f}."
        )
    lines += _what_brackets_hold(report)
    if report.logged:
        lines.append(_when_logged(report.logged))
    return "## How it was measured\n\n" + " ".join(lines)


def _what_brackets_hold(report: ReportData) -> list[str]:
    """Explain the brackets of all intervals, if there are any."""
    intervals = [report.latency.ratio] if report.latency else []
    intervals += [interval for m in report.metrics.values() for interval in (m.dense, m.pruned, m.difference)]
    levels = {interval.confidence for interval in intervals}
    how = f"{'Wilson for accuracies, ' if report.metrics else ''}bootstrap (seed {report.seed}) for everything else"
    lines = [f"Brackets hold {level:.0%} intervals: {how}." for level in levels if level is not None]
    if None in levels:
        lines.append("A range is that of all values, which are too few for an interval.")
    return lines + (["Differences are paired by sample."] if report.metrics else [])


def _when_logged(logged: Mapping[str, LoggedMetric]) -> str:
    """Name the moments of the fit behind the logged metrics."""
    clauses = [_clause({name: when(metric) for name, metric in logged.items()}) for when in (_dense, _after, _last)]
    text = f"Logged metrics are the module's own: {'; '.join(clauses)}."
    if all(metric.dense is None for metric in logged.values()):
        text += (
            " For dense values, validate before the network is pruned, with a Trainer that has the fit's PruneReport "
            "and no callback that prunes."
        )
    return text


def _clause(moments: Mapping[str, str]) -> str:
    """Return the moment shared by all metrics, or each moment with its metrics."""
    by_moment: dict[str, list[str]] = {}
    for name, moment in moments.items():
        by_moment.setdefault(moment, []).append(name)
    if len(by_moment) == 1:
        return next(iter(by_moment))
    return ", ".join(f"{moment} ({', '.join(names)})" for moment, names in by_moment.items())


def _dense(metric: LoggedMetric) -> str:
    if metric.dense is None:
        return "dense is not known, for it was logged in no validation that the report saw before the first surgery"
    epoch = metric.dense[0]
    return "dense is from " + (
        "the validation before the fit"
        if epoch is None
        else f"the last validation before the first surgery, in epoch {epoch}"
    )


def _after(metric: LoggedMetric) -> str:
    if metric.after_surgery is None:
        return "right after surgery is not known, for the network was pruned before this fit"
    return f"after surgery is from the first validation after the last surgery, in epoch {metric.after_surgery[0]}"


def _last(metric: LoggedMetric) -> str:
    return f"recovered is from the last validation, in epoch {metric.last[0]}"


def _what_was_removed(plan: PlanSummary) -> str:
    lines = []
    for kind, units in plan.removed.items():
        groups = [group for group in plan.groups if group.kind == kind]
        if groups:
            lines.append(f"- {kind}: {_counts(groups)}")
        elif kind not in WIDTH_KINDS:  # without groups, the narrowed units have been removed as a whole since
            lines.append(f"- {kind}: " + ", ".join(f"`{unit}` ({plan.leaves[unit]})" for unit in units))
    arguments = ", ".join(f"{name}={value!r}" for name, value in plan.arguments.items() if value is not None)
    how = (
        f"Planned by `{plan.method or 'hand'}`" + (f" with `{arguments}`" if arguments else "") + f", seed {plan.seed}."
    )
    if plan.saved:
        how += f" Saves {' and '.join(f'{share:.1%} of the {titled(cost)}' for cost, share in plan.saved.items())}."
    how += " In brackets: what is left in its place." if plan.leaves else ""
    body = "\n".join(lines) or "Nothing."
    return f"## What was removed\n\n{body}\n\n{how}"


def _other_budgets(found: FrontierEvidence) -> str:
    header, rows = frontier_table(found.frontier)
    said = f"Asked of the {titled(found.frontier_cost)}; divergence of the output is predicted."
    return f"## What other budgets would cost\n\n{markdown_table(header, rows, 'r' * len(header))}\n\n{said}"


def _counts(groups: Sequence[KeptGroup]) -> str:
    """Return the number of removed units of a kind, in total and for every narrowed group."""
    size = sum(group.size for group in groups)
    gone = size - sum(group.kept for group in groups)
    parts = [f"`{g.name}` {g.size - g.kept} of {g.size}" for g in groups if g.kept < g.size]
    return f"{gone:,} of {size:,} ({gone / size:.0%}): {', '.join(parts)}"


def _planning_cost(cost: PlanningCost) -> str:
    text = f"{cost.seconds:.1f} s"
    text += "" if cost.trials is None else f", {cost.trials} trials"
    text += "" if cost.peak_memory_bytes is None else f", peak memory {_mib(cost.peak_memory_bytes)}"
    return f"## Cost of the search\n\n{text}."


def _cost_row(name: str, shown: Callable[[float], str], before: float, after: float) -> Row:
    return name, shown(before), shown(after), _percent(after / before) if before else ""


def _latency_rows(latency: LatencyRatio) -> list[Row]:
    """Return the medians of both sides, which may drift, and the ratio of neighbouring passes, free of drift."""
    before, after, ratio = latency.dense_ms, latency.pruned_ms, latency.ratio
    change = f"{_percent(ratio.value)} {ratio.ends(_percent)}"
    of_pairs = "ratio of 1 pair" if latency.pairs == 1 else f"median ratio of {latency.pairs} pairs"
    return [
        _cost_row(f"Latency, batch of {latency.batch_size}, medians", lambda ms: f"{ms:.2f} ms", before, after),
        (f"Latency, {of_pairs}", "1", f"{ratio.value:.3f}", change),
    ]


def _metric_row(name: str, metric: MetricComparison) -> Row:
    label = re.sub(r"^top(\d+)$", r"Top-\1 accuracy, %", name) + f" ({metric.samples:,} samples)"
    before, after, difference = (_interval(i, metric.share) for i in (metric.dense, metric.pruned, metric.difference))
    sign = "+" if metric.difference.value >= 0 else ""
    return label, before, after, sign + difference


def _logged_row(name: str, metric: LoggedMetric) -> Row:
    shown = _points if metric.share else _number
    pruned = shown(metric.last[1])
    if metric.after_surgery not in (None, metric.last):
        pruned = f"{shown(metric.after_surgery[1])} after surgery, {pruned} recovered"
    label = f"{name}{', %' if metric.share else ''} (logged)"
    if metric.dense is None:
        return label, "not validated", pruned, ""
    before = metric.dense[1]
    change = metric.last[1] - before
    return label, shown(before), pruned, ("+" if change >= 0 else "") + shown(change)


def _points(share: float) -> str:
    return f"{100 * share:.2f}"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _interval(interval: Interval, share: bool) -> str:
    if share:
        return f"{100 * interval.value:.2f} {interval.ends(lambda end: f'{100 * end:.1f}')}"
    return f"{interval.value:.4g} {interval.ends('{:.3g}'.format)}"


def _percent(share: float) -> str:
    return f"{100 * (share - 1):+.1f}%"


def _si(value: float) -> str:
    for limit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {suffix}"
    return f"{value:.3g}"


def _mib(size: float) -> str:
    return f"{size / 2**20:.3g} MiB"
