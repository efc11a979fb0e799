"""Objects drawn from a detector's own output score units by the curvature of the divergence, without labels."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.models.tiny import tiny_llama
from cases.trainers import fit
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from prunerecover import Budget, plan_width
from prunerecover.callbacks import Prune, WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.divergence.detections import Detections, by_part
from prunerecover.importance.measuring.drawn import (
    drawn,
    drawn_direction_loss,
    drawn_label_loss,
    drawn_loss,
    usual_loss,
)
from prunerecover.importance.measuring.losses import supervised_loss
from prunerecover.model.batches import ModelInputs, as_inputs


class Cells(nn.Module):
    """Detector of two classes: an object, a box and a class for each cell."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 7, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(self.first(x).relu())
        return torch.cat([x[:, :1].sigmoid(), 3 * x[:, 1:5], x[:, 5:].softmax(1)], 1)


def images(n: int = 4) -> Tensor:
    return 2 * torch.randn(n, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def detections(logit: Tensor) -> Detections:
    rows = torch.zeros(1, 4000, 4) + torch.linspace(-1, 1, 4000)[None, :, None]
    classes = torch.full((1, 4000, 2), 0.5)
    return Detections(logit.sigmoid().expand(1, 4000), rows, classes, exclusive=True)


def test_squared_gradients_have_the_curvature_of_the_divergence() -> None:
    """Oracle: the second derivative of the divergence by the logit of all objects, p (1 - p) per place."""
    logit = torch.tensor(-1.0, requires_grad=True)
    still = detections(logit.detach())
    (slope,) = torch.autograd.grad(by_part(still, detections(logit))["objects"], logit, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, logit)
    gradients = still.objects - drawn(still, 0).objects  # of the cross-entropy by the logit, place by place
    per_place = float(curvature * still.objects.sum() / still.objects.numel())
    assert gradients.square().mean().item() == pytest.approx(per_place, rel=0.05)


def test_draws_follow_the_seed_and_the_network() -> None:
    network, batch = Cells(), images()
    first, again, other = (drawn_loss(network, batch, seed=seed) for seed in (0, 0, 1))
    assert first.item() == again.item() != other.item()
    gradients = torch.autograd.grad(first, list(network.parameters()))
    assert all(gradient.isfinite().all() and gradient.abs().sum() > 0 for gradient in gradients)


def test_labels_are_read_where_there_are_any_except_by_detectors() -> None:
    network, rows = Embedder().eval(), torch.randn(4, 5)
    assert usual_loss(network, ModelInputs((rows[:1],)), (rows, torch.zeros(4)), 0) is supervised_loss
    assert usual_loss(network, ModelInputs((rows[:1],)), rows, 0) is not supervised_loss
    labelled = images(), torch.zeros(4)
    assert usual_loss(Cells().eval(), ModelInputs((images(1),)), labelled, 0) is not supervised_loss


class Unlabelled(pl.LightningModule):
    """Detector in a fit whose training step has no loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Cells()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        output: Tensor = self.net(batch[0])
        return 0 * output.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize("surgeon", [WidthPrune, Prune])
def test_a_fit_scores_a_detector_by_drawn_objects(surgeon: Any, tmp_path: Path) -> None:
    module, data = Unlabelled(), DataLoader(TensorDataset(images(32)), 8)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The gradient of the loss is zero")
        fit(tmp_path, module, surgeon(Budget(macs=0.3), calibration=32), data=data)
    assert Ledger.of(module).plans["net"].edits


class Embedder(nn.Module):
    """Embeddings of unit norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(self.second(self.first(x).relu()), dim=-1)


def test_squared_gradients_of_directions_have_the_curvature_of_the_angle() -> None:
    """Oracle: the second derivative of 1 - cos by a step away from an embedding, for many draws of one sample."""
    embedding, step = torch.tensor([0.6, 0.8, 0.0]), torch.tensor([0.3, 0.2, 0.5])
    at = torch.zeros(4000, 1, requires_grad=True)
    moved = embedding + at * step
    (slope,) = torch.autograd.grad((1 - torch.cosine_similarity(embedding, moved)).sum(), at, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), at)
    loss = drawn_direction_loss(nn.Identity(), embedding + at * step)
    (gradients,) = torch.autograd.grad(len(at) * loss, at)
    assert gradients.square().mean().item() == pytest.approx(curvature[0].item(), rel=0.05)


def test_detectors_embeddings_and_other_outputs_are_planned_without_labels() -> None:
    network, rows = Embedder().eval(), torch.randn(32, 5, generator=torch.Generator().manual_seed(0))
    raw = nn.Sequential(network.first, nn.ReLU(), network.second)
    maps = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1)).eval()
    for model, batch in ((network, rows), (raw, rows), (maps, images(32)), (Cells().eval(), images(32))):
        assert plan_width(model, Budget(macs=0.3), batches=torch.split(batch, 8)).removed
    assert plan_width(raw, Budget(macs=0.3), batches=torch.split(rows, 8), divergence="cosine").removed


def test_squared_gradients_of_drawn_labels_have_the_curvature_of_the_divergence() -> None:
    """Oracle: the second derivative of KL(p || q) by a logit, p (1 - p)."""
    logits = torch.zeros(20000, 3, requires_grad=True)
    (gradients,) = torch.autograd.grad(len(logits) * drawn_label_loss(nn.Identity(), logits), logits)
    torch.testing.assert_close(gradients.square().mean(0), torch.full((3,), 2 / 9), rtol=0.03, atol=0)


@pytest.mark.parametrize("padded", [False, True])
def test_texts_have_their_next_tokens_as_labels(padded: bool) -> None:
    model, tokens = tiny_llama(), torch.arange(24).reshape(2, 12)
    mask = torch.ones_like(tokens)
    mask[1, 8:] = 0 if padded else 1
    batch = {"input_ids": tokens, "attention_mask": mask}
    loss = usual_loss(model, as_inputs(batch), batch, 0)
    wanted = model(**batch, labels=tokens.masked_fill(mask == 0, -100)).loss
    torch.testing.assert_close(loss(model, batch), wanted)
    assert usual_loss(model.model, as_inputs(batch), batch, 0) is not loss  # hidden states alone
