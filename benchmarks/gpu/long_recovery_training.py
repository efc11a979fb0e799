"""Training of `long_recovery.py`: the images, the teacher's answers, and one recovery that is the same for all methods.

AdamW in bf16 under `recovery_schedule`; half of the loss is the labels', half the dense network's answers, which are
computed once for all views of all images. Networks have 1,000 classes, of which the 200 of the data are trained and
scored. Some training images are held out, to score short runs on.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.boundary.short_runs import ShortRuns
from benchmarks.data.real import DEVICE, autocast, deit_tiny
from benchmarks.data.tiny_imagenet import classes
from benchmarks.gpu.images import SHOWN, Images, decoded, views
from prunerecover import Plan, apply_plan, recovery_schedule
from prunerecover.recovery.distillation import distillation_loss

RATE, DECAY, ALPHA, TEMPERATURE = 5e-4, 0.05, 0.5, 2.0  # the last two are DistillRecover's


@dataclass(frozen=True)
class Scale:
    """How much of everything.

    Attributes:
        images: Decoded of the training split.
        held_out: Of these, to score short runs on.
        calibration: Of the others, to plan on, in one batch: what latency is measured on.
        test: Decoded of the validation split.
        epochs: Of a recovery.
        views: Of each image.
        batch: Images per step.
        short: Images of the only epoch of a short run, and
        short_batch: per step of it.
        side: Pixels that networks see.
        depth: Blocks of the network. Without some it knows no class: its own answers are the labels then.
    """

    images: int = 20_000
    held_out: int = 1000
    calibration: int = 256
    test: int = 5000
    epochs: int = 30
    views: int = 6
    batch: int = 512
    short: int = 2000
    short_batch: int = 64
    side: int = 224
    depth: int = 12


REHEARSAL = Scale(200, 40, 16, 50, epochs=1, views=1, batch=32, short=8, short_batch=8, side=32, depth=3)


@dataclass(frozen=True)
class Recovery:
    """The dense network, its data, and what trains and scores a pruned one.

    Attributes:
        scale: How much of everything.
        out: Folder of the records of short runs.
    """

    scale: Scale
    out: Path

    @cached_property
    def _dense(self) -> nn.Module:
        network = deit_tiny(img_size=self.scale.side)
        del network.blocks[self.scale.depth :]
        return network.to(DEVICE)

    def dense(self) -> nn.Module:
        """Return a copy of the dense network."""
        return copy.deepcopy(self._dense)

    @cached_property
    def _images(self) -> Images:
        return self._decoded("train", self.scale.images)

    @cached_property
    def held_out(self) -> Images:
        """Training images that nothing is trained or calibrated on."""
        return self._images.select(slice(self.scale.held_out))

    @cached_property
    def trained(self) -> Images:
        """All others."""
        return self._images.select(slice(self.scale.held_out, None))

    @cached_property
    def test(self) -> Images:
        """Images that are only scored."""
        return self._decoded("valid", self.scale.test)

    def _decoded(self, split: str, n: int) -> Images:
        images = decoded(split, self._dense, self.scale.side, n)
        if self.scale.depth < Scale.depth:
            return replace(images, labels=logits_of(self._dense, images).argmax(1))
        return images

    @cached_property
    def calibration(self) -> list[tuple[Tensor, Tensor]]:
        """Training images with labels, as they are scored, in one batch."""
        chosen = self.trained.select(slice(self.scale.calibration))
        return [(chosen.seen(), chosen.labels)]

    @cached_property
    def boxes(self) -> Tensor:
        """The views of the images that are trained on, `(views, N, 4)`."""
        return views(len(self.trained), self.scale.views)

    @cached_property
    def answers(self) -> Tensor:
        """The dense network's logits for each view, `(views, N, 200)`."""
        return torch.stack([logits_of(self._dense, self.trained, boxes).half() for boxes in self.boxes])

    def pruned(self, plan: Plan) -> nn.Module:
        """Apply a plan to the dense network; nothing is merged yet."""
        network = self.dense()
        apply_plan(network, plan)
        return network

    def prepare(self) -> None:
        """Make what all rows share, so that none of them is timed with it."""
        for shared in ("answers", "test", "calibration"):
            getattr(self, shared)

    def train(self, network: nn.Module, seed: int, short: bool = False) -> nn.Module:
        """Train a network in place, and return it.

        Args:
            network: On the device.
            seed: Of the order.
            short: Whether for a short run: fewer images, once.
        """
        n, size = (self.scale.short, self.scale.short_batch) if short else (len(self.trained), self.scale.batch)
        generator = torch.Generator().manual_seed(seed)
        epochs = 1 if short else self.scale.epochs
        orders = [torch.randperm(n, generator=generator).split(size) for _ in range(epochs)]
        optimizer = torch.optim.AdamW(network.parameters(), RATE, weight_decay=DECAY)
        scheduler = recovery_schedule(optimizer, epochs * len(orders[0]))
        network.train()
        for epoch, order in enumerate(orders):
            for chosen in order:
                loss = self._loss(network, chosen.to(DEVICE), epoch % self.scale.views)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
        return network.eval()

    def _loss(self, network: nn.Module, chosen: Tensor, view: int) -> Tensor:
        images = self.trained.select(chosen)
        with autocast():
            logits = network(images.seen(self.boxes[view, chosen]))[:, classes().to(DEVICE)].float()
        distilled = distillation_loss(logits, self.answers[view, chosen].float(), TEMPERATURE)
        return (1 - ALPHA) * F.cross_entropy(logits, images.labels) + ALPHA * distilled

    def short_runs(self) -> ShortRuns:
        """Return what recovers the trials of a map and scores them on held-out images."""

        def run(plan: Plan, seed: int) -> float:
            network = self.train(self.pruned(plan), seed, short=True)
            return 100 * float(hits(network, self.held_out).mean())

        return ShortRuns(run, self.out / "long_recovery_gpu.trials.jsonl", images=self.scale.short, rate=RATE)


def logits_of(network: nn.Module, images: Images, boxes: Tensor | None = None) -> Tensor:
    """Return the logits of the 200 classes, `(N, 200)`, of some views or of the middles."""
    network.eval()
    found = []
    with torch.no_grad(), autocast():
        for part in torch.arange(len(images), device=DEVICE).split(SHOWN):
            seen = images.select(part).seen(None if boxes is None else boxes[part])
            found.append(network(seen)[:, classes().to(DEVICE)].float())
    return torch.cat(found)


def hits(network: nn.Module, images: Images) -> NDArray[np.float64]:
    """Return whether a network is right, per image."""
    right: Any = logits_of(network, images).argmax(1).eq(images.labels)
    return right.double().cpu().numpy()  # type: ignore[no-any-return]
