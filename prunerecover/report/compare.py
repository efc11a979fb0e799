"""Comparison of a model before and after pruning, side by side; files are written only when the report is saved."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from prunerecover.cost.latency import latency_ratio
from prunerecover.cost.macs import macs_by_module
from prunerecover.cost.measurement import measure
from prunerecover.cost.statistics import is_share, mean_interval, paired_difference
from prunerecover.families.describe import describe, is_supported
from prunerecover.former import renamed
from prunerecover.model.batches import as_inputs
from prunerecover.model.evaluation import device_of
from prunerecover.model.paths import unwrap
from prunerecover.plan.evidence import PlanningCost
from prunerecover.report.data import MetricComparison, PlanSummary
from prunerecover.report.report import Report
from prunerecover.report.scoring import Metric, metric_named, score

if TYPE_CHECKING:
    from prunerecover.plan.plan import Plan


def compare(
    dense: nn.Module,
    pruned: nn.Module,
    example_inputs: Any,
    *,
    batches: Iterable[Any] | None = None,
    metric: str | Sequence[str] | Mapping[str, Metric] | Callable[..., Any] = "top1",
    plan: Plan | None = None,
    planning_cost: PlanningCost | None = None,
    pairs: int = 30,
    seed: int = 0,
    details: Mapping[str, Any] | None = None,
    search: PlanningCost | None = None,
) -> Report:
    """Measure a model before and after pruning, side by side; both are bit-identical afterwards.

    Args:
        dense: Model before pruning.
        pruned: Model after pruning.
        example_inputs: Batch for MACs, latency and memory: a tensor, a tuple with the input first, a mapping of keyword
            arguments, or `ModelInputs`.
        batches: Labelled batches for the metrics: tuples (input, labels) or mappings with `labels`. None: costs alone.
        metric: Metric `"top1"`, `"top5"`, several names, a function (predictions, labels) -> one score per sample, or
            functions by name.
        plan: Applied plan, to be summarised.
        planning_cost: Cost of finding the plan.
        pairs: Number of interleaved pairs of timed passes; 0 skips the timing, fewer than 6 give a range and no
            interval.
        seed: Seed of the bootstraps.
        details: JSON values to keep in the report.
        search: Former name of `planning_cost`.

    Raises:
        ValueError: If a metric is unknown, or there are batches without samples.
        TypeError: If the batches have no labels.
    """
    metrics = _metrics(metric)
    place = device_of(dense)
    placed = pruned if device_of(pruned) == place else copy.deepcopy(pruned).to(place)
    inputs = as_inputs(example_inputs).to(place)
    before, after = (measure(m, inputs, repeats=0) for m in (dense, placed))
    latency = None
    if pairs:
        latency = latency_ratio(dense, placed, inputs, pairs, seed=seed)
        before = dataclasses.replace(before, latency_ms=latency.dense_ms)
        after = dataclasses.replace(after, latency_ms=latency.pruned_ms)
    return Report(
        dense=before,
        pruned=after,
        block_macs=_block_macs(dense, placed, inputs),
        latency=latency,
        metrics={} if batches is None else _compared(dense, placed, batches, metrics, seed),
        plan=None if plan is None else PlanSummary.of(plan),
        planning_cost=renamed("compare(search=)", search, planning_cost),
        seed=seed,
        details=dict(details or {}),
    )


def _metrics(metric: str | Sequence[str] | Mapping[str, Metric] | Callable[..., Any]) -> dict[str, Metric]:
    if isinstance(metric, Mapping):
        return dict(metric)
    if callable(metric):
        return {getattr(metric, "__name__", "metric"): metric}
    return {name: metric_named(name) for name in ([metric] if isinstance(metric, str) else metric)}


def _block_macs(dense: nn.Module, pruned: nn.Module, inputs: Any) -> tuple[int, int] | None:
    if not is_supported(unwrap(dense)):
        return None
    container = describe(unwrap(dense)).container
    before, after = (macs_by_module(model, inputs) for model in (dense, pruned))
    return (before[container], after[container]) if container in before and container in after else None


def _compared(
    dense: nn.Module, pruned: nn.Module, batches: Iterable[Any], metrics: Mapping[str, Metric], seed: int
) -> dict[str, MetricComparison]:
    before, after = score((dense, pruned), batches, metrics)
    return {
        name: MetricComparison(
            samples=len(before[name]),
            share=is_share(before[name]) and is_share(after[name]),
            dense=mean_interval(before[name], seed=seed),
            pruned=mean_interval(after[name], seed=seed),
            difference=paired_difference(before[name], after[name], seed=seed),
        )
        for name in metrics
    }
