"""What `distillation.py` prunes and recovers: ResNet-56, DeiT-Tiny and SmolLM2-135M, each with its data and scores.

Plans are made once and kept: half of the MACs of ResNet-56 in width, 6 activations and 2 attentions of DeiT-Tiny, and
the 7 of 30 blocks of SmolLM2 that `llm_depth` found, with the maps in their place fitted anew.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.data import cifar, smollm2, tiny_imagenet
from benchmarks.data.real import BF16, CHECKPOINTS, DEVICE, deit_tiny, image_data, kept_plan
from benchmarks.language.llm_depth_lora import drawn_sequences
from benchmarks.language.llm_depth_scores import window_losses, windows
from benchmarks.width.cifar_models import load
from prunerecover import Budget, DepthPrune, LoRARecover, Plan, WidthPrune, plan_depth, plan_width

BASE = "labels and teacher"  # what others are compared with
PLANS = CHECKPOINTS / "distillation"
TEXTS = ("wikitext2", "tinystories")
BLOCKS = tuple(range(12, 19))  # of SmolLM2, by docs/results/llm_depth.md
UNITS = {"activation": 6, "attention": 2}  # of DeiT-Tiny
CALIBRATED, LLM_CALIBRATED = 96, 16


@dataclass(frozen=True)
class Subject:
    """A network that is pruned and recovered.

    Attributes:
        dense: Loads it.
        plan: Returns what goes.
        surgeon: Makes the callback that prunes by a plan.
        loss: `loss(network, batch)`, by the labels.
        optimizer: `optimizer(parameters, rate)`.
        loader: Makes the training data, with a seed.
        scores: Says how good a network is, per image or text that it was not trained on.
        rates: Learning rates, the middle one first.
        losses: Names of what it learns from.
        measure: Name of the scores.
        scale: 100 for a share in percent.
        beside: Makes further callbacks.
        again: The surgeon of all fits but the first, if that one takes long.
        precision: Of the Trainer.
    """

    dense: Callable[[], nn.Module]
    plan: Callable[[], Plan]
    surgeon: Callable[[Plan], pl.Callback]
    loss: Callable[[nn.Module, Any], Tensor]
    optimizer: Callable[[Any, float], torch.optim.Optimizer]
    loader: Callable[[int], Any]
    scores: Callable[[nn.Module], NDArray[np.float64]]
    rates: tuple[float, ...]
    losses: tuple[str, ...]
    measure: str
    scale: float
    beside: Callable[[], list[pl.Callback]] = field(default=list)
    precision: Mapping[str, Any] = field(default_factory=dict)
    again: Callable[[Plan], pl.Callback] | None = None


class Learner(pl.LightningModule):
    """An ordinary module at a constant rate; half of the batches of images are mirrored."""

    def __init__(self, subject: Subject, rate: float) -> None:
        super().__init__()
        self.subject, self.rate = subject, rate
        self.net = subject.dense().train()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss by the labels."""
        first, *rest = batch
        mirrored = first.ndim == 4 and bool(torch.rand(()) < 0.5)
        return self.subject.loss(self.net, [first.flip(3) if mirrored else first, *rest])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return self.subject.optimizer(self.parameters(), self.rate)


def _plan(name: str, make: Callable[[], Plan]) -> Callable[[], Plan]:
    def kept() -> Plan:
        PLANS.mkdir(parents=True, exist_ok=True)
        return kept_plan(PLANS / f"{name}.json", make)

    return kept


def _shuffled(data: TensorDataset, size: int, seed: int) -> DataLoader[Any]:
    return DataLoader(data, size, shuffle=True, generator=torch.Generator().manual_seed(seed))


CIFAR_IMAGES, CIFAR_SCORED = 3000, 5000


def _half_of_resnet() -> Plan:
    return plan_width(load("ResNet-56"), Budget(macs=0.5), batches=cifar.batches(256, 0, 64))


def _sgd(parameters: Any, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, rate, momentum=0.9, weight_decay=5e-4)


def _adamw(parameters: Any, rate: float, decay: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, rate, weight_decay=decay)


DEIT_IMAGES, DEIT_SCORED = 500, 2000


def _deit() -> nn.Module:
    return tiny_imagenet.unfused(deit_tiny())


@cache
def _deit_images() -> TensorDataset:
    """Return training images that are not augmented, the same as 500 in every epoch."""
    source = tiny_imagenet.data(DEIT_IMAGES, augment=False, augment_kwargs={}, num_workers=0)
    source.setup("fit")
    batches = [list(batch) for batch in source.train_dataloader()]
    images, labels = (torch.cat(parts)[:DEIT_IMAGES] for parts in zip(*batches, strict=True))
    return TensorDataset(images, labels)


@cache
def _deit_scored() -> list[Any]:
    source = image_data("tiny_imagenet", batch_size=50, num_workers=0, limit_val=DEIT_SCORED)
    source.setup("validate")
    dtype = torch.bfloat16 if BF16 else torch.float32
    return [(images.to(dtype), labels) for images, labels in source.val_dataloader()]


def _deit_without_units() -> Plan:
    return plan_depth(deit_tiny(), remove=UNITS, batches=tiny_imagenet.calibration(CALIBRATED))


SEQUENCES, WINDOWS = 48, 48  # texts of an epoch; windows of each source that are scored


def _smollm2_without_blocks() -> Plan:
    texts = torch.split(drawn_sequences(LLM_CALIBRATED).to(DEVICE), 4)

    def known(context: Any) -> dict[str, float]:
        return {unit.name: float(int(unit.name.rpartition(".")[2]) not in BLOCKS) for unit in context.units}

    batches = [{"input_ids": some} for some in texts]
    how: dict[str, Any] = {"importance": known, "search": "one_shot", "batches": batches}
    return plan_depth(smollm2.network(), remove={"block": len(BLOCKS)}, **how)


def _next_token(network: nn.Module, batch: Any) -> Tensor:
    loss: Tensor = network(input_ids=batch[0], labels=batch[0], use_cache=False).loss
    return loss


def _text_losses(network: nn.Module) -> NDArray[np.float64]:
    """Return the loss of each held-out window, in nats per token, of both sources."""
    chosen = [windows(text)[:: len(windows(text)) // WINDOWS][:WINDOWS] for text in TEXTS]
    return window_losses(network, torch.cat(chosen))


def _adapters() -> list[pl.Callback]:
    return [LoRARecover(rank=16, modules_to_save=("norm",), seed=0)]


SUBJECTS: Mapping[str, Subject] = {
    "ResNet-56": Subject(
        dense=partial(load, "ResNet-56"),
        plan=_plan("resnet56", _half_of_resnet),
        surgeon=lambda plan: WidthPrune(plan=plan, merge="never"),
        loss=cifar.cross_entropy,
        optimizer=_sgd,
        loader=lambda seed: _shuffled(TensorDataset(*cifar.training_images(CIFAR_IMAGES, 0)), 50, seed),
        scores=partial(cifar.hits, n=CIFAR_SCORED),
        rates=(0.02, 0.005, 0.05),
        losses=("labels", "teacher", BASE),
        measure="top-1",
        scale=100,
        again=lambda plan: WidthPrune(plan=plan, merge="never", reconstruct=False, calibration=16),
    ),
    "DeiT-Tiny": Subject(
        dense=_deit,
        plan=_plan("deit_tiny", _deit_without_units),
        surgeon=lambda plan: DepthPrune(plan=plan, merge="never"),
        loss=tiny_imagenet.loss,
        optimizer=partial(_adamw, decay=0.05),
        loader=lambda seed: _shuffled(_deit_images(), 16, seed),
        scores=lambda network: tiny_imagenet.hits(network, _deit_scored()),
        rates=(1e-4, 2e-5, 5e-4),
        losses=("labels", "teacher", BASE, f"{BASE} and features"),
        measure="top-1",
        scale=100,
        precision=tiny_imagenet.PRECISION,
    ),
    "SmolLM2-135M": Subject(
        dense=lambda: copy.deepcopy(smollm2.network()),
        plan=_plan("smollm2", _smollm2_without_blocks),
        surgeon=lambda plan: DepthPrune(plan=plan, merge="never"),
        loss=_next_token,
        optimizer=partial(_adamw, decay=0.0),
        loader=lambda seed: _shuffled(TensorDataset(drawn_sequences(SEQUENCES)), 4, seed),
        scores=_text_losses,
        rates=(3e-3, 1e-3, 1e-2),
        losses=("labels", "teacher", BASE, f"{BASE} and features"),
        measure="loss",
        scale=1,
        beside=_adapters,
        precision=tiny_imagenet.PRECISION,
    ),
}
