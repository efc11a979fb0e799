"""One choice of DeiT-Tiny's variants, tuned on more and more images.

    PRUNERECOVER_DATA=... python -m benchmarks.end_to_end.tuning_samples

The choice is made once for each budget, on 256 images; its fitted values are tuned on the 192 images for fits, and on
so many further training images. Each result is scored as planned and after a short epoch with distillation,
on the same 1,000 images, for all 5,000 validation images. A budget takes half an hour on a core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from timm.models.vision_transformer import Block
from torch import Tensor

from benchmarks.data import tiny_imagenet
from benchmarks.end_to_end.natural_call_subjects import IMAGES, SUBJECTS
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, ahead, figure, text
from benchmarks.runner.rows import Figure
from prunerecover.calibration import steps
from prunerecover.model.copies import deep_copy
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.planner import SAMPLES, Planner
from prunerecover.session.session import Session
from prunerecover.solvers.state import State
from prunerecover.surgery.apply_edits import apply_edits

BUDGETS = (0.33, 0.5)
FURTHER = steps.WANTED_OUTPUTS - SAMPLES * 3 // 4  # images; the default of the callbacks
BATCH, BLOCKS, SEED = 16, 12, 0
ALONE = "192 images"
METHODS = {ALONE: 0, **{f"192 + {more:,} images": more for more in (1088, FURTHER)}}


@cache
def training_images() -> tuple[Tensor, Tensor]:
    """Return the images to choose by, followed by all further images, and labels."""
    return tiny_imagenet.training_images(SAMPLES + FURTHER)


@cache
def planned(budget: float) -> tuple[Planner, State, list[Tensor]]:
    """Return the planner of a budget of the MACs, its choice, and the list of batches to tune on besides."""
    images, labels = (drawn[:SAMPLES] for drawn in training_images())
    batches = list(zip(torch.split(images, BATCH), torch.split(labels, BATCH), strict=True))
    further = list[Tensor]()
    how: dict[str, Any] = {"seed": SEED, "further": lambda _: further}
    planner = Planner(Session(SUBJECTS["deit_tiny"].dense(), batches, **how), "macs", PruningConfig(seed=SEED))
    planner.score_width()
    return planner, planner.together({"macs": budget}), further


@contextmanager
def passes() -> Iterator[Callable[[], float]]:
    """Count passes of 256 images through all blocks."""
    seen, own = [0], Block.forward

    def forward(block: Block, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen[0] += len(x)
        return own(block, x, *args, **kwargs)

    with patch.object(Block, "forward", forward):
        yield lambda: seen[0] / (BLOCKS * SAMPLES)


def measure(budget: float, method: str) -> Iterator[dict[str, Any]]:
    """Tune the choice of a budget, and score it as planned and after a short epoch."""
    planner, state, batches = planned(budget)
    more = METHODS[method]
    images, _ = training_images()
    batches[:] = torch.split(images[SAMPLES : SAMPLES + more], BATCH) if more else ()
    with passes() as counted:
        chosen = planner.finished(state)[0]
        notes = {"passes": counted()}
    network = deep_copy(planner.session.model).eval()
    apply_edits(network, *planner.library.maker.edits(chosen))
    yield {"stage": "prune_only", "top1": Figure.of(tiny_imagenet.hits(network)), **notes}
    recovered = tiny_imagenet.recover(network, IMAGES["deit_tiny"], SEED)
    yield {"stage": "recovered", "top1": Figure.of(tiny_imagenet.hits(recovered)), **notes}


BENCHMARK = Benchmark(
    title="Samples to tune on",
    text=f"""One choice of variants of DeiT-Tiny for each budget of the MACs, made on {SAMPLES} images, its fitted
    values tuned on different numbers of training images. Callbacks draw the largest number by themselves; functions
    take what batches hold beyond the first {SAMPLES} samples. Passes: of {SAMPLES} images through all blocks while
    tuning. Ahead by: top-1 points on the same 5,000 images, paired, with their 95% interval.""",
    measure=measure,
    axes={"budget": Axis(BUDGETS, open=True), "method": Axis(tuple(METHODS))},
    also=("stage",),
    complete=False,
    tables=(
        Table(
            [
                text("method", "tuned on"),
                text("stage"),
                figure("top1", "top-1 (95%)", 2, 100),
                ahead("top1", f"ahead of {ALONE} by", 1, 100, same=("stage",), method=ALONE, turned=True),
                text("passes", form="{:.1f}"),
            ],
            title="{budget:.0%} of the MACs",
            by=("budget",),
            line=("stage", "method"),
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
