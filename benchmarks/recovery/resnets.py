"""What a ResNet is worth after width pruning, before and after training on, by what is done to it right after surgery.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.resnets

ResNet-18 is pruned in the middle of its training, where BatchNorm statistics lag behind the weights; ResNet-20 is
trained elsewhere, and its statistics are right. Starts: BatchNorm statistics estimated anew; layers fitted to the dense
network with the statistics that it has; `reconstruct`, which looks at these first and keeps what is nearest. All three
get the same plan, and train on the same batches. Resumable row by row; an hour on a core.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data.cifar import hits, training_images
from benchmarks.data.real import CHECKPOINTS, accuracy, made_by, parser, stored, unpacked, write
from benchmarks.width.cifar_models import load
from prunerecover import Budget, Plan, apply_plan, plan_width, recalibrate_batchnorm, reconstruct
from prunerecover.cost.statistics import paired_difference
from prunerecover.display.markdown import table
from prunerecover.model.batches import ModelInputs
from prunerecover.recovery.reconstruction import fit_layers

NAME, TESTED, BATCH, EPOCHS = "reconstruction", 2000, 50, 2
SEEDS = (0, 1, 2)
Row = dict[str, Any]
Batches = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Subject:
    """A network that is pruned.

    Attributes:
        share: Of the MACs that goes.
        images: That it trains on.
        load: Returns it, given a seed.
    """

    share: float
    images: int
    load: Callable[[int], nn.Module]


@dataclass(frozen=True)
class Training:
    """How a network trains on: SGD with momentum.

    Attributes:
        rate: The learning rate at its highest.
        linear: Whether it falls to zero.
        warmup: Steps before it is at its highest.
    """

    rate: float
    linear: bool = True
    warmup: int = 0

    def at(self, step: int, steps: int) -> float:
        """Return the rate of a step."""
        rising = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        return self.rate * rising * (1 - step / steps if self.linear else 1.0)

    def __str__(self) -> str:
        return f"{self.rate} {'to zero' if self.linear else 'constant'}" + (", warm-up" if self.warmup else "")


TRAININGS = (Training(0.02, linear=False), Training(0.02), Training(0.05, warmup=60))
UNTRAINED = "before"


def trained(network: nn.Module, n: int, seed: int, how: Training, epochs: int = EPOCHS) -> nn.Module:
    """Return the network after some epochs of `n` images, half of the batches flipped."""
    pixels, labels = training_images(n, seed)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(network.parameters(), how.rate, momentum=0.9, weight_decay=5e-4)
    steps = n // BATCH
    network.train()
    for step in range(epochs * steps):
        if step % steps == 0:
            order = torch.randperm(n, generator=generator)
        chosen = order[step % steps * BATCH :][:BATCH]
        images = pixels[chosen]
        images = images.flip(3) if torch.rand(1, generator=generator) < 0.5 else images
        optimizer.param_groups[0]["lr"] = how.at(step, epochs * steps)
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels[chosen]).backward()
        optimizer.step()
    return network.eval()


def half_trained(seed: int) -> nn.Module:
    """Return a ResNet-18 after 6 epochs of 3,000 images at a constant rate."""
    torch.manual_seed(seed)
    network = torchvision.models.resnet18(num_classes=10)
    path = CHECKPOINTS / f"resnet18_half_trained_{seed}.pt"
    if path.is_file():
        network.load_state_dict(torch.load(path))
        return network.eval()
    network = trained(network, SUBJECTS["ResNet-18"].images, seed, TRAININGS[0], epochs=6)
    path.parent.mkdir(exist_ok=True)
    torch.save(network.state_dict(), path)
    return network


SUBJECTS = {
    "ResNet-18": Subject(0.3, 3000, half_trained),
    "ResNet-20": Subject(0.5, 6000, lambda seed: load("ResNet-20")),
}


def calibration(subject: Subject, seed: int) -> Batches:
    """Return 256 of the training images, in batches of 64."""
    images = (tensor[:256].split(64) for tensor in training_images(subject.images, seed))
    return list(zip(*images, strict=True))


def _recalibrated(network: nn.Module, dense: nn.Module, plan: Plan, batches: Batches) -> str:
    recalibrate_batchnorm(network, batches)
    return ""


def _fitted(network: nn.Module, dense: nn.Module, plan: Plan, batches: Batches) -> str:
    fit_layers(network, dense, plan, [ModelInputs((images,)) for images, _ in batches])
    return ""


def _reconstructed(network: nn.Module, dense: nn.Module, plan: Plan, batches: Batches) -> str:
    return reconstruct(network, dense, plan, batches).way


STARTS: Mapping[str, Callable[[nn.Module, nn.Module, Plan, Batches], str]] = {
    "statistics anew": _recalibrated,
    "fitted to the dense network as it is": _fitted,
    "reconstruct": _reconstructed,
}
DENSE = ("dense", "dense, statistics anew")


@cache
def dense_of(name: str, seed: int) -> nn.Module:
    """Return the dense network."""
    return SUBJECTS[name].load(seed)


@cache
def plan_of(name: str, seed: int) -> Plan:
    """Return the plan that all starts get."""
    subject = SUBJECTS[name]
    return plan_width(dense_of(name, seed), Budget(macs=subject.share), batches=calibration(subject, seed), seed=seed)


@cache
def start_of(name: str, seed: int, start: str) -> tuple[nn.Module, str]:
    """Return a network before it trains on, and which way `reconstruct` has kept."""
    dense, batches = dense_of(name, seed), calibration(SUBJECTS[name], seed)
    network = copy.deepcopy(dense)
    if start in DENSE:
        if start != DENSE[0]:
            recalibrate_batchnorm(network, batches)
        return network, ""
    apply_plan(network, plan_of(name, seed))
    kept = STARTS[start](network, copy.deepcopy(dense), plan_of(name, seed), batches)
    return network, kept


def same_as(name: str, seed: int, start: str) -> str:
    """Return another start that gave the same network, bit for bit; else itself."""
    own = start_of(name, seed, start)[0].state_dict()
    for other in STARTS:
        if other == start:
            break
        theirs = start_of(name, seed, other)[0].state_dict()
        if all(torch.equal(own[key], theirs[key]) for key in own):
            return other
    return start


def measured(name: str, seed: int, start: str, column: str, rows: list[Row]) -> Row:
    """Return one figure; of a network that another start gave, too, it is that of this one."""
    network, kept = start_of(name, seed, start)
    row = {"model": name, "seed": seed, "start": start, "training": column, "kept": kept}
    if start in STARTS and (twin := same_as(name, seed, start)) != start:
        known = next((r for r in rows if key_of(r) == (name, seed, twin, column)), None)
        if known is not None:
            return {**known, **row, "same_as": twin}
    network = copy.deepcopy(network)
    if column != UNTRAINED:
        how = next(training for training in TRAININGS if str(training) == column)
        network = trained(network, SUBJECTS[name].images, seed, how)
    weights = max(float(parameter.detach().abs().max()) for parameter in network.parameters())
    return {**row, **accuracy(hits(network, n=TESTED)), "largest": weights}


def key_of(row: Row) -> tuple[str, int, str, str]:
    """Return what names a row."""
    return row["model"], row["seed"], row["start"], row["training"]


def wanted(seeds: int) -> list[tuple[str, int, str, str]]:
    """Return the names of all rows, those of the first seed first."""
    columns = (UNTRAINED, *map(str, TRAININGS))
    pruned = [
        (name, seed, start, c) for seed in SEEDS[:seeds] for name in SUBJECTS for c in columns for start in STARTS
    ]
    dense = [(name, seed, start, UNTRAINED) for seed in SEEDS[:seeds] for name in SUBJECTS for start in DENSE]
    return dense + pruned


def page(rows: list[Row]) -> str:
    """Return the page."""
    lines = ["# Reconstruction of ResNets", "", *made_by(["python -m benchmarks.recovery.resnets"]), TEXT, ""]
    for name in SUBJECTS:
        own = [row for row in rows if row["model"] == name]
        lines += [f"## {name}", "", *_table(own), ""]
    return "\n".join(lines)


TEXT = (
    f"Top-1 on {TESTED:,} test images of CIFAR-10 (JPEG), the mean over seeds; the networks train on for {EPOCHS} "
    f"epochs of SGD, momentum 0.9, in batches of {BATCH}, 60 steps of warm-up where the column says so. In brackets: "
    "the difference from the first row of the pruned network, on the same images, with its paired 95% interval. "
    "ResNet-18: 6 epochs of 3,000 images at 0.02, then 30% of the MACs out, then these images again. ResNet-20: "
    "trained elsewhere, half of the MACs out, then 6,000 images. 256 of the training images to plan and reconstruct on."
)


def _table(rows: list[Row]) -> list[str]:
    columns = (UNTRAINED, *map(str, TRAININGS))
    found = {key_of(row)[1:]: row for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    lines = []
    for start in (*DENSE, *STARTS):
        cells = [_cell(found, seeds, start, column) for column in columns]
        own = [row for row in rows if row["start"] == start]
        kept = ", ".join(f"{row['seed']}: {row['kept']}" for row in own if row["training"] == UNTRAINED and row["kept"])
        lines.append((start, *cells, kept))
    return table(("start", *columns, "kept, by seed"), lines).splitlines() + [
        "",
        f"Seeds: {', '.join(map(str, seeds))}.",
    ]


def _cell(found: Mapping[Any, Row], seeds: list[int], start: str, column: str) -> str:
    own = {seed: found[seed, start, column] for seed in seeds if (seed, start, column) in found}
    if not own:
        return ""
    text = f"{np.mean([row['top1'] for row in own.values()]):.1f}"
    first = next(iter(STARTS))
    both = [seed for seed in own if (seed, first, column) in found]
    if start in DENSE or start == first or not both:
        return text + ("" if len(own) == len(seeds) else f" (n={len(own)})")
    ours, theirs = (
        np.concatenate([unpacked(found[seed, one, column]["hits"], TESTED) for seed in both]) for one in (start, first)
    )
    gap = paired_difference(theirs, ours, seed=0)
    return f"{text} ({100 * gap.value:+.1f}, {100 * gap.low:+.1f} to {100 * gap.high:+.1f})"


def main() -> None:
    """Measure what is missing, and write the page after each row."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=len(SEEDS))
    options.add_argument("--only", choices=list(SUBJECTS))
    asked = options.parse_args()
    rows = stored(NAME)
    for key in wanted(asked.seeds):
        if key in map(key_of, rows) or asked.only not in (None, key[0]):
            continue
        rows.append(measured(*key, rows))
        print(*key, f"{rows[-1]['top1']:.1f}", rows[-1]["kept"], rows[-1].get("same_as", ""), flush=True)
        write(NAME, {"rows": rows}, page(rows))


if __name__ == "__main__":
    main()
