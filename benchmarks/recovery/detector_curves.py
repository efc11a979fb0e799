"""A real detector pruned in depth, in width and in both: mAP over what is left, untrained and after distillation.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.detector_curves

FastestDet loses a share of its MACs in a fit: planned and reconstructed on images of coco128's training split, then
trained on its 128 images by labels and distillation from the dense network. Scored on the 128 images of the
other split, which nothing is fitted to, right after the surgery and at the end. 5 to 15 minutes a row on a core.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from matplotlib.figure import Figure as Picture
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.data.fastestdet import boxes_of, detection_loss, fastestdet, mean_precision, scenes
from benchmarks.end_to_end.segmentation import interval
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.fits import AfterSurgery, Learner, fit
from benchmarks.runner.page import Table, figure, text, told
from benchmarks.runner.plans import shares
from benchmarks.runner.rows import Row
from prunerecover import Budget, merge
from prunerecover.callbacks import DepthPrune, DistillRecover, Prune, RecoverySchedule, WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.pruning import PruneCallback
from prunerecover.cost.latency import latency_ratio
from prunerecover.display.style import GREY

EPOCHS, BATCH, RATE, CALIBRATION, DRAWS, PAIRS, SEED = 24, 16, 1e-3, 96, 100, 20, 0
NORMS: dict[str, Any] = {"importance": "l2_norm", "allocation": "uniform", "replace": "zero"}
LEAST_NORM = "channels of least norm"
METHODS: Mapping[str, Callable[..., PruneCallback]] = {
    "Prune": Prune,
    "WidthPrune": WidthPrune,
    "DepthPrune": DepthPrune,
    "DepthPrune, in rounds": partial(DepthPrune, search="rounds"),
    LEAST_NORM: partial(WidthPrune, **NORMS),
}
PEER = "torch-pruning"


def loss(network: nn.Module, batch: tuple[Tensor, list[Tensor]]) -> Tensor:
    """Return the loss of labelled images."""
    return detection_loss(network(batch[0]), batch[1])


def training_batches() -> DataLoader[Any]:
    """Return the training images with their objects, mirrored at random, in batches."""
    data = scenes("train2017")
    boxes = [own["boxes"] / size.repeat(2) for own, size in zip(data.objects, data.sizes, strict=True)]
    told = [torch.cat([own, one["labels"][:, None]], 1) for own, one in zip(boxes, data.objects, strict=True)]

    def collate(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, list[Tensor]]:
        images, objects = zip(
            *(mirrored(*sample) if torch.rand(()) < 0.5 else sample for sample in samples), strict=True
        )
        return torch.stack(images), list(objects)

    return DataLoader([*zip(data.images, told, strict=True)], BATCH, shuffle=True, collate_fn=collate)  # type: ignore[arg-type]


def mirrored(image: Tensor, objects: Tensor) -> tuple[Tensor, Tensor]:
    """Return an image and its objects, left and right exchanged."""
    left, top, right, below, label = objects.unbind(1)
    return image.flip(2), torch.stack([1 - right, top, 1 - left, below, label], 1)


@cache
def draws(n: int) -> NDArray[np.int64]:
    """Return numbers of images drawn with replacement, the same for all networks."""
    return np.random.default_rng(SEED).integers(0, n, (DRAWS, n))


def scored(network: nn.Module) -> dict[str, Any]:
    """Return mAP50 and mAP of a network in percent, with the interval over images, and the costs once merged."""
    dense, merged, tested = fastestdet(), copy.deepcopy(network).eval(), scenes("val2017")
    merge(merged)
    with torch.no_grad():
        outputs = torch.cat([network.eval()(part) for part in torch.split(tested.images, BATCH)])
    found = [boxes_of(*pair) for pair in zip(outputs, tested.sizes, strict=True)]
    whole = mean_precision(found, tested.objects)
    drawn = [
        mean_precision([found[n] for n in own], [tested.objects[n] for n in own])["map_50"] for own in draws(len(found))
    ]
    example = tested.images[:1]
    return {
        "map50": interval(whole["map_50"], np.array(drawn), len(found)),
        "map": whole["map"],
        "drawn": [round(value, 2) for value in drawn],
        "latency_share": latency_ratio(dense, merged, example, pairs=PAIRS, warmup=5).ratio.value,
        **shares(dense, merged, example),
    }


def measure(budget: float, method: str) -> Iterator[dict[str, Any]]:
    """Prune and distil in a single fit, and score both."""
    if method == "dense":
        yield {"stage": "untrained", **scored(fastestdet())}
    elif method == PEER:
        yield {"stage": "untrained", "failure": peer(budget)}
    else:
        after = AfterSurgery()
        module = Learner(fastestdet().train(), loss, partial(torch.optim.AdamW, lr=RATE, weight_decay=0.01))
        surgeon = METHODS[method](Budget(macs=budget), calibration=CALIBRATION, seed=SEED)
        pl.seed_everything(SEED, verbose=False)
        fit(module, training_batches(), [surgeon, after, DistillRecover(), RecoverySchedule()], max_epochs=EPOCHS)
        assert after.network is not None
        yield {"stage": "untrained", **scored(after.network)}
        yield {"stage": "distilled", **scored(Ledger.of(module).plain_copy(module, "model"))}


def peer(budget: float) -> str:
    """Return the error of torch-pruning on the network."""
    import torch_pruning

    network, example = fastestdet(), torch.rand(1, 3, 352, 352)
    importance = torch_pruning.importance.MagnitudeImportance(p=1)
    try:
        pruner = torch_pruning.pruner.BasePruner(
            network, example, importance, pruning_ratio=budget / 2, global_pruning=True
        )
        pruner.step()
        network(example)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def ahead(rows: Sequence[Row]) -> list[str]:
    """Return lines on how far each method is ahead of the channels of least norm, paired over images."""
    said = []
    for row in rows:
        norms = next((one for one in rows if one.method == LEAST_NORM and _same(one, row)), None)
        if norms is None or row.method == LEAST_NORM or "drawn" not in row.notes:
            continue
        gain = row.figures["map50"].value - norms.figures["map50"].value
        found = interval(gain, np.subtract(row["drawn"], norms["drawn"]), row.figures["map50"].n)
        said.append(f"- {row.method}, {row['budget']:.0%}, {row['stage']}: {told(found, sign='+')}")
    failed = [f"{PEER} fails on this network: `{row['failure']}`." for row in rows if row.method == PEER][:1]
    title = f"Ahead of {LEAST_NORM} in mAP50, on the same drawn images (95%):\n"
    return [*(["\n".join([title, *said])] if said else []), *failed]


def _same(one: Row, other: Row) -> bool:
    return all(one[name] == other[name] for name in ("budget", "stage"))


def picture(rows: Sequence[Row]) -> Picture:
    """Draw mAP50 over parameters, MACs and time, untrained and distilled."""
    drawn = Picture(figsize=(11, 6.4), layout="constrained")
    grid = drawn.subplots(2, 3, sharey=True)
    (dense,) = (row.figures["map50"].value for row in rows if row.method == "dense")
    costs = {"params_share": "parameters left", "macs_share": "MACs left", "latency_share": "time"}
    for across, stage in zip(grid, ("untrained", "distilled"), strict=True):
        for axes, (cost, label) in zip(across, costs.items(), strict=True):
            axes.axhline(dense, color=GREY, linewidth=1, linestyle=":")
            for method in METHODS:
                own = sorted(
                    (row[cost], row.figures["map50"].value)
                    for row in rows
                    if (row.method, row["stage"]) == (method, stage)
                )
                if own:
                    axes.plot(*zip(*own, strict=True), marker="o", markersize=4, label=method)
            axes.set_xlabel(label)
        across[0].set_ylabel(f"mAP50, {stage}")
    grid[0][0].legend(fontsize=8)
    return drawn


BENCHMARK = Benchmark(
    title="A detector in depth, in width and in both",
    text=f"""FastestDet without a share of its MACs, by each callback's defaults, on coco128. Untrained: right after
    surgery, with BatchNorm statistics and weights reconstructed where that is nearer. Distilled: {EPOCHS} epochs on
    the 128 training images with `DistillRecover`, AdamW at the share of {RATE} that `RecoverySchedule` finds.
    mAP in percent on the 128 images of val2017; the interval is over {DRAWS} draws of the images. Seed {SEED}.""",
    measure=measure,
    axes={"budget": Axis((0.1, 0.2, 0.33), open=True), "method": Axis(tuple(METHODS))},
    references=[{"budget": 0.0, "method": "dense"}, {"budget": 0.2, "method": PEER}],
    also=("stage",),
    threads=0,
    tables=(
        Table(
            [
                text("method"),
                text("stage"),
                figure("map50", "mAP50 (95%)"),
                text("map", "mAP", "{:.1f}"),
                text("params_share", "parameters left", "{:.3f}"),
                text("macs_share", "MACs left", "{:.3f}"),
                text("latency_share", "time", "{:.2f}"),
            ],
            title="{budget:.0%} of the MACs",
            by=("budget",),
            line=("stage", "method"),
            where=lambda row: row.method != PEER,
        ),
    ),
    closing=ahead,
    pictures={"": picture},
)

if __name__ == "__main__":
    BENCHMARK.main()
