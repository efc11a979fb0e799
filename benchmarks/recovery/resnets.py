"""Scores of a ResNet after width pruning, before and after further training, by the step right after surgery.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.resnets

ResNet-18 is pruned in the middle of its training, where BatchNorm statistics lag behind the weights; ResNet-20 is
trained elsewhere, with right statistics. Starts: recalibrated BatchNorm; layers fitted to the dense network with its
present statistics; and `reconstruct`, which checks the statistics first and keeps the nearest result. All three get the
same plan, and train on the same batches. An hour on a core.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.data.cifar import batches, cross_entropy, hits, training_images
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.fits import train
from benchmarks.runner.page import Column, Line, Table, across, text, told
from benchmarks.runner.plans import kept as kept_file
from benchmarks.runner.rows import CHECKPOINTS, Figure
from benchmarks.width.cifar_models import load
from prunerecover import Budget, Plan, apply_plan, plan_width, recalibrate_batchnorm, reconstruct
from prunerecover.cost.statistics import paired_difference
from prunerecover.model.batches import ModelInputs
from prunerecover.recovery.reconstruction import fit_layers

TESTED, CALIBRATION, BATCH, EPOCHS, SEEDS = 2000, 256, 50, 2, (0, 1, 2)
Batches = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Training:
    """How a network trains on: SGD with momentum.

    Attributes:
        rate: Peak learning rate.
        linear: Whether the rate falls to zero.
        warmup: Steps before the peak.
    """

    rate: float
    linear: bool = True
    warmup: int = 0

    def factor(self, step: int, steps: int) -> float:
        """Return the share of the rate at a step."""
        rising = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        return rising * (1 - step / steps if self.linear else 1.0)


UNTRAINED = "before"
TRAININGS: dict[str, Training | None] = {
    UNTRAINED: None,
    "0.02 constant": Training(0.02, linear=False),
    "0.02 to zero": Training(0.02),
    "0.05 to zero, warm-up": Training(0.05, warmup=60),
}


def trained(network: nn.Module, n: int, seed: int, how: Training, epochs: int = EPOCHS) -> nn.Module:
    """Return the network after some epochs of `n` images, half of the batches flipped."""
    pixels, labels = training_images(n, seed)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(network.parameters(), how.rate, momentum=0.9, weight_decay=5e-4)
    scheduler = LambdaLR(optimizer, partial(how.factor, steps=epochs * n // BATCH))

    def drawn() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(epochs):
            for chosen in torch.randperm(n, generator=generator).split(BATCH):
                mirrored = torch.rand(1, generator=generator) < 0.5
                yield pixels[chosen].flip(3) if mirrored else pixels[chosen], labels[chosen]

    return train(network, drawn(), cross_entropy, optimizer, scheduler)


def half_trained(seed: int) -> nn.Module:
    """Return a ResNet-18 after 6 epochs of 3,000 images at a constant rate."""
    torch.manual_seed(seed)
    network = torchvision.models.resnet18(num_classes=10)
    how = Training(0.02, linear=False)

    def weights() -> dict[str, Tensor]:
        return trained(network, IMAGES["ResNet-18"], seed, how, 6).state_dict()

    network.load_state_dict(kept_file(CHECKPOINTS / f"resnet18_half_trained_{seed}.pt", weights))
    return network.eval()


IMAGES, SHARES = {"ResNet-18": 3000, "ResNet-20": 6000}, {"ResNet-18": 0.3, "ResNet-20": 0.5}


@cache
def dense_of(model: str, seed: int) -> nn.Module:
    """Return the dense network."""
    return half_trained(seed) if model == "ResNet-18" else load(model)


@cache
def plan_of(model: str, seed: int) -> Plan:
    """Return the plan of all starts."""
    budget = Budget(macs=SHARES[model])
    return plan_width(dense_of(model, seed), budget, batches=batches(CALIBRATION, seed, 64), seed=seed)


def _recalibrated(network: nn.Module, dense: nn.Module, plan: Plan, given: Batches) -> str:
    recalibrate_batchnorm(network, given)
    return ""


def _fitted(network: nn.Module, dense: nn.Module, plan: Plan, given: Batches) -> str:
    fit_layers(network, dense, plan, [ModelInputs((images,)) for images, _ in given])
    return ""


ANEW = "statistics anew"
STARTS: dict[str, Callable[[nn.Module, nn.Module, Plan, Batches], str]] = {
    "dense": lambda *_: "",
    f"dense, {ANEW}": _recalibrated,
    ANEW: _recalibrated,
    "fitted to the dense network as it is": _fitted,
    "reconstruct": lambda *given: reconstruct(*given).way,
}


@cache
def start_of(model: str, seed: int, method: str) -> tuple[nn.Module, str]:
    """Return a network before further training, and the way kept by `reconstruct`."""
    network, plan = copy.deepcopy(dense_of(model, seed)), Plan()
    if not method.startswith("dense"):
        plan = plan_of(model, seed)
        apply_plan(network, plan)
    dense = copy.deepcopy(dense_of(model, seed))
    return network, STARTS[method](network, dense, plan, batches(CALIBRATION, seed, 64))


def measure(seed: int, model: str, training: str, method: str) -> dict[str, Any]:
    """Train on from a start, and score."""
    start, kept = start_of(model, seed, method)
    network, how = copy.deepcopy(start), TRAININGS[training]
    network = network if how is None else trained(network, IMAGES[model], seed, how)
    weights = max(float(parameter.detach().abs().max()) for parameter in network.parameters())
    return {"top1": Figure.of(hits(network, n=TESTED)), "kept": kept, "largest": weights}


def top1(line: Line) -> str:
    """Return the mean over seeds, and the lead over recalibrated statistics."""
    value = f"{100 * np.mean([row.figures['top1'].value for row in line.rows]):.1f}"
    same = {"training": line.first["training"], "method": ANEW}
    base = {row["seed"]: row for row in line.there if row.is_of(**same)}
    both = [row for row in line.rows if row["seed"] in base]
    if not both or line.first.method == ANEW or line.first.method.startswith("dense"):
        return value
    theirs, ours = (
        np.concatenate([row.figures["top1"].scores for row in rows])
        for rows in ([base[row["seed"]] for row in both], both)
    )
    return f"{value}; {told(paired_difference(theirs, ours, seed=0), 1, 100, '+')}"


def kept(line: Line) -> str:
    """Return the kept way by seed."""
    return ", ".join(f"{row['seed']}: {row['kept']}" for row in line.only(training=UNTRAINED).rows if row["kept"])


BENCHMARK = Benchmark(
    name="reconstruction",
    title="Reconstruction of ResNets",
    text=f"""Top-1 on {TESTED:,} test images of CIFAR-10 (JPEG), the mean over seeds; the networks train on for {EPOCHS}
    epochs of SGD, momentum 0.9, in batches of {BATCH}, 60 steps of warm-up where the column says so. Behind it: the
    difference from new statistics alone, on the same images, with its paired 95% interval. ResNet-18: 6 epochs of 3,000
    images at 0.02, then 30% of the MACs out, then these images again. ResNet-20: trained elsewhere, half of the MACs
    out, then 6,000 images. 256 of the training images to plan and reconstruct on. Three seeds.""",
    measure=measure,
    axes={
        "seed": Axis(SEEDS),
        "model": Axis(tuple(SHARES), "--only"),
        "training": Axis(tuple(TRAININGS)),
        "method": Axis(tuple(STARTS), "--starts"),
    },
    skipped=lambda seed, model, training, method: method.startswith("dense") and training != UNTRAINED,
    tables=(
        Table(
            [
                text("method", "start"),
                *across("training", tuple(TRAININGS), [Column("{}", top1)]),
                Column("kept, by seed", kept),
            ],
            title="{model}",
            by=("model",),
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
