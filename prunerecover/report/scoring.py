"""Scores of models sample by sample on labelled batches, for paired differences.

A metric maps predictions and labels to a score per sample. All models see a batch before the next batch is drawn:
scores are paired even if the loader shuffles or augments at random, or can be read only once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prunerecover.model.batches import as_inputs, call, predictions_of, split_labels
from prunerecover.model.evaluation import device_of, evaluating

Metric = Callable[[Tensor, Tensor], Tensor]  # predictions (N, ...) and labels (N, ...) -> scores (N,)


def metric_named(name: str) -> Metric:
    """Return the metric `"top1"`, `"top5"` or any other `"top<k>"`: 1 for a label among the k best classes.

    >>> metric_named("top2")(torch.tensor([[0.1, 0.3, 0.6]]), torch.tensor([1]))
    tensor([1.])

    Raises:
        ValueError: If there is no such metric.
    """
    match = re.fullmatch(r"top([1-9]\d*)", name)
    if match is None:
        raise ValueError(
            f"Expected a metric named 'top1', 'top5' or another 'top<k>', but got '{name}'. "
            "Pass a function (predictions, labels) -> scores, one per sample, for anything else."
        )
    k = int(match[1])

    def among_best(predictions: Tensor, labels: Tensor) -> Tensor:
        best = predictions.topk(min(k, predictions.shape[-1]), dim=-1).indices
        return (best == labels.unsqueeze(-1)).any(-1).float()

    return among_best


def score(
    models: Sequence[nn.Module], batches: Iterable[Any], metrics: Mapping[str, Metric]
) -> list[dict[str, NDArray[np.float64]]]:
    """Score several models on the same samples; models are bit-identical afterwards.

    Args:
        models: Models, each on its own device.
        batches: Labelled batches: tuples (input, labels, ...) or mappings with the key `labels` or `label`.
        metrics: Metrics by name.

    Returns:
        A score per sample, `(N,)`, in the order of the batches, for each model and metric.

    Raises:
        ValueError: If there is no batch, or a metric does not give a score per sample.
        TypeError: If a batch has no labels.
    """
    scores: list[dict[str, list[Tensor]]] = [{name: [] for name in metrics} for _ in models]
    with evaluating(*models):
        for batch in batches:
            inputs, labels = split_labels(batch)
            for model, found in zip(models, scores, strict=True):
                device = device_of(model)
                predictions = predictions_of(call(model, as_inputs(inputs).to(device)))
                for name, metric in metrics.items():
                    found[name].append(_checked(name, metric(predictions, labels.to(device)), labels))
    if metrics and models and not scores[0][next(iter(metrics))]:
        raise ValueError(
            "Expected at least one labelled batch, but there was none. "
            "Pass an iterable of batches (a generator that was already consumed is empty)."
        )
    return [{name: torch.cat(parts).numpy() for name, parts in found.items()} for found in scores]


def _checked(name: str, scores: Tensor, labels: Tensor) -> Tensor:
    if scores.shape != labels.shape[:1]:
        raise ValueError(
            f"Expected metric '{name}' to give one score per sample, shape ({len(labels)},), but got "
            f"{tuple(scores.shape)}. Average over whatever else there is inside the metric."
        )
    return scores.detach().double().cpu()
