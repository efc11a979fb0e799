"""Scores against torchmetrics; pairing with loaders without repetition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from cases.fits.transformers_fits import vit
from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_accuracy

from prunerecover.model.batches import split_labels
from prunerecover.report.scoring import metric_named, score

TOP1 = {"top1": metric_named("top1")}


def classifier(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5))


def random_batches(count: int = 3, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.randn(10, 6, generator=generator), torch.randint(0, 4, (10,), generator=generator)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_k_equals_torchmetrics(k: int) -> None:
    torch.manual_seed(0)
    predictions, labels = torch.randn(200, 10), torch.randint(0, 10, (200,))
    oracle = multiclass_accuracy(predictions, labels, num_classes=10, top_k=k, average="micro")
    assert metric_named(f"top{k}")(predictions, labels).mean().item() == pytest.approx(oracle.item())


@pytest.mark.parametrize("name", ["accuracy", "top0", "top", "top1 "])
def test_unknown_metric_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="Expected a metric named 'top1', 'top5' or another 'top<k>', but got"):
        metric_named(name)


def test_models_see_the_same_samples_of_a_loader_that_never_repeats() -> None:
    model = classifier()
    first, second = score((model, model), random_batches(), TOP1)
    assert first["top1"].tolist() == second["top1"].tolist()
    assert len(first["top1"]) == 30


def test_scores_keep_the_order_of_the_samples_and_the_model_its_mode() -> None:
    model = classifier().train()
    (found,) = score((model,), random_batches(), TOP1)
    expected = [
        float(row.argmax() == label) for x, y in random_batches() for row, label in zip(model.eval()(x), y, strict=True)
    ]
    assert found["top1"].tolist() == expected
    model.train()
    score((model,), random_batches(), TOP1)
    assert model[1].training


def test_labels_in_a_mapping_are_not_passed_on() -> None:
    model = vit()
    batch = {"pixel_values": torch.randn(5, 3, 8, 8), "labels": torch.arange(5) % 4}
    (found,) = score((model,), [batch], TOP1)
    expected = (model.eval()(batch["pixel_values"]).logits.argmax(-1) == batch["labels"]).double()
    assert found["top1"].tolist() == expected.tolist()


def test_metric_that_averages_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one score per sample, shape \(10,\), but got \(\)"):
        score((classifier(),), random_batches(1), {"mean": lambda p, y: p.mean()})


def test_empty_loader_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected at least one labelled batch, but there was none"):
        score((classifier(),), [], TOP1)


@pytest.mark.parametrize("batch", [torch.zeros(2, 3), (torch.zeros(2, 3),), {"x": torch.zeros(2, 3)}, (1, "cat")])
def test_unlabelled_batch_is_refused(batch: Any) -> None:
    with pytest.raises(TypeError, match="Expected labelled batches"):
        split_labels(batch)
