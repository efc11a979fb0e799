"""A budget in one surgery, and in three with an epoch behind each, at equal epochs.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.rounds --subjects ResNet-56 DeiT-Tiny

WidthPrune and RecoverySchedule in a Trainer, three epochs. Once: all goes before the first epoch. In three steps: a
third of the budget before each. Resumable: rows that are there are not made again. 2 to 6 minutes a fit on a core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.data import cifar, tiny_imagenet
from benchmarks.data.real import RESULTS, deit_tiny, image_data, made_by, parser, write
from benchmarks.depth.graph_depth_rows import add, difference, measured, rows_so_far, shares, without_samples
from benchmarks.recovery.fits import Classifier, fit
from benchmarks.width.cifar_models import load
from prunerecover import Budget, PruneSchedule, RecoverySchedule, WidthPrune
from prunerecover.display.markdown import table

NAME, EPOCHS, TIMES, TESTED = "prune_rounds", 3, 3, 2000
ROWS = RESULTS / f"{NAME}.rows.jsonl"
SCHEDULES = {"once": PruneSchedule(), "in three steps": PruneSchedule(every=1, times=TIMES)}
ONCE, STEPS = SCHEDULES
Row = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A network that is pruned.

    Attributes:
        load: Returns it.
        images: Returns what it trains on, images and labels, given a seed.
        hits: Returns whether a network is right, per test image.
        example: One image.
        budgets: Shares of the MACs that go.
        optimizer: Name of its optimizer.
        rate: Learning rate.
        batch: Images of a step.
        calibration: Images to plan and reconstruct on.
        settings: Of the Trainer.
        classes: Returns the logits that labels count; None: all.
        text: What it trains on and is scored on.
    """

    load: Callable[[], nn.Module]
    images: Callable[[int], tuple[Tensor, Tensor]]
    hits: Callable[[nn.Module], NDArray[np.float64]]
    example: Tensor
    budgets: tuple[float, ...]
    optimizer: str
    rate: float
    batch: int
    calibration: int
    settings: dict[str, Any]
    classes: Callable[[], Tensor | None]
    text: str


def photos(seed: int) -> tuple[Tensor, Tensor]:
    """Return 600 training images of tiny_imagenet, the same for each seed, as DeiT-Tiny sees them."""
    images, labels = zip(*tiny_imagenet.calibration(600), strict=True)
    return torch.cat(images), torch.cat(labels)


@cache
def unseen() -> list[tuple[Tensor, Tensor]]:
    """Return validation images of tiny_imagenet in batches."""
    source = image_data("tiny_imagenet", batch_size=50, num_workers=0, limit_val=TESTED)
    source.setup("validate")
    return [(images.bfloat16(), labels) for images, labels in source.val_dataloader()]


SUBJECTS = {
    "ResNet-56": Subject(
        load=lambda: load("ResNet-56"),
        images=lambda seed: cifar.training_images(2000, seed),
        hits=lambda network: cifar.hits(network, n=TESTED),
        example=cifar.EXAMPLE,
        budgets=(0.33, 0.5, 0.7),
        optimizer="SGD",
        rate=0.02,
        batch=50,
        calibration=64,
        settings={},
        classes=lambda: None,
        text="2,000 JPEGs of CIFAR-10 an epoch, SGD with momentum at 0.02, planned and reconstructed on 64 of them",
    ),
    "DeiT-Tiny": Subject(
        load=lambda: tiny_imagenet.unfused(deit_tiny()),
        images=photos,
        hits=lambda network: tiny_imagenet.hits(network, unseen()),
        example=torch.zeros(1, 3, 224, 224),
        budgets=(0.33, 0.5),
        optimizer="AdamW",
        rate=1e-4,
        batch=25,
        calibration=64,
        settings=tiny_imagenet.PRECISION,
        classes=tiny_imagenet.classes,
        text="600 images of tiny_imagenet's 200 classes an epoch, AdamW at 0.0001, planned on 64 of them",
    ),
}


def pruned(subject: Subject, share: float, schedule: PruneSchedule, seed: int) -> nn.Module:
    """Return the network after the fit."""
    surgeon = WidthPrune(
        Budget(macs=share), schedule=schedule, calibration=subject.calibration, merge="never", seed=seed
    )
    return fit(
        Classifier(subject.load(), subject.optimizer, subject.rate, subject.classes()),
        subject.images(seed),
        [surgeon, RecoverySchedule(lr=None)],
        EPOCHS,
        batch=subject.batch,
        seed=seed,
        **subject.settings,
    )


def run(name: str, budgets: Sequence[float], seed: int) -> None:
    """Add the rows of a subject that are missing."""
    subject = SUBJECTS[name]
    if not rows_so_far(ROWS, model=name, schedule="dense"):
        add(measured(subject.hits(subject.load()), 0, model=name, schedule="dense", budget=0.0), ROWS)
    for share in budgets:
        for schedule, how in SCHEDULES.items():
            what = {"model": name, "budget": share, "schedule": schedule}
            if rows_so_far(ROWS, seed=seed, **what):
                continue
            started = time.perf_counter()
            network = pruned(subject, share, how, seed)
            cost = {"seconds": time.perf_counter() - started, **shares(subject.load(), network, subject.example)}
            print(without_samples(add(measured(subject.hits(network), seed, **what, **cost), ROWS)), flush=True)
            page()


def main() -> None:
    """Add rows that are missing, and write the page."""
    options = parser(__doc__)
    options.add_argument("--subjects", nargs="*", choices=list(SUBJECTS), default=[])
    options.add_argument("--budgets", type=float, nargs="*", help="shares of the MACs that go; all if left out")
    options.add_argument("--seeds", type=int, nargs="*", default=[0])
    asked = options.parse_args()
    torch.set_num_threads(1)
    for seed in asked.seeds:
        for name in asked.subjects:
            run(name, asked.budgets or SUBJECTS[name].budgets, seed)
    page()


def page() -> None:
    """Write the page of the rows that are there."""
    rows = rows_so_far(ROWS)
    lines = ["# One surgery or several", "", *made_by(sorted({row["command"] for row in rows})), TEXT]
    for name, subject in SUBJECTS.items():
        own = [row for row in rows if row["model"] == name]
        if own:
            dense = next(row for row in own if row["schedule"] == "dense")
            cells = [_cells([row for row in own if row["budget"] == share], share) for share in subject.budgets]
            lines += ["", f"## {name}", "", f"{subject.text}; dense {100 * dense['value']:.1f}."]
            lines += ["", table(HEAD, [cell for cell in cells if cell])]
    write(NAME, {"rows": [without_samples(row) for row in rows]}, "\n".join(lines))


HEAD = ("MACs out", "seeds", "MACs left: once, in three steps", "once", "in three steps", "in three steps ahead by")
TEXT = (
    f"`WidthPrune` with `RecoverySchedule(lr=None)`, {EPOCHS} epochs. Once: all of the budget goes before the first "
    f"epoch. In three steps: `PruneSchedule(every=1, times={TIMES})`, a third of it before each epoch, planned anew "
    f"each time, and a warm-up and a decay to zero in each epoch. Top-1 in percent on {TESTED:,} test images; ahead: "
    "on the same images, with the paired 95% interval over images, which says nothing of other seeds."
)


def _cells(rows: list[Row], share: float) -> tuple[str, ...]:
    of = {schedule: [row for row in rows if row["schedule"] == schedule] for schedule in SCHEDULES}
    if not all(of.values()):
        return ()
    left = ", ".join(f"{np.mean([row['macs_share'] for row in found]):.1%}" for found in of.values())
    seeds = ", ".join(str(row["seed"]) for row in of[STEPS])
    ahead = difference(of[STEPS], of[ONCE], 100, 1)
    return (f"{share:.0%}", seeds, left, *(_mean(found) for found in of.values()), ahead)


def _mean(rows: list[Row]) -> str:
    each = [100 * row["value"] for row in sorted(rows, key=lambda row: int(row["seed"]))]
    return f"{np.mean(each):.1f}" + (f" ({', '.join(f'{value:.1f}' for value in each)})" if len(each) > 1 else "")


if __name__ == "__main__":
    main()
