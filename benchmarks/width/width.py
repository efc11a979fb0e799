"""Width pruning against its peers: real ResNet-20 and ResNet-56, and a ConvNeXt, on the 10,000 test JPEGs of CIFAR-10.

    pip install network-pruner==2.16
    PRUNERECOVER_DATA=... python -m benchmarks.width.width --models ResNet-20 --match macs
    PRUNERECOVER_DATA=... python -m benchmarks.width.width --stages prune_only bn_recalibrated one_epoch

Every method removes 20, 30 and 50% of the MACs or of the parameters and is scored as it is, after BatchNorm
recalibration on 1,024 other training images (the ConvNeXt has no BatchNorm, and stays as it is), and, if asked for,
after one epoch on 5,000 training images. The 400 test images that are stored without loss are scored beside. Units and
statistics are chosen on training images only. Resumable: rows that are in the results are not made again. The published
package's scores take minutes per network and seed; all else about a minute per row on two cores. `cifar_models.py`
trains the ConvNeXt.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import nn

from benchmarks.data.cifar import LEARNING_RATE, batches, hits, train_one_epoch
from benchmarks.data.real import RESULTS, accuracy, ahead_by, commands_so_far, made_by, parser, stored, unpacked, write
from benchmarks.width.cifar_models import MODELS, load
from benchmarks.width.width_figure import plot_curves
from benchmarks.width.width_peers import METHODS, NOT_FOR_CONVNEXT, OURS, SCORED, removed, settle
from prunerecover import recalibrate_batchnorm
from prunerecover.cost.memory import peak_memory
from prunerecover.display.markdown import table

NAME = "width"
SHARES, SEEDS = (0.2, 0.3, 0.5), (0, 1, 2)
STAGES = ("prune_only", "bn_recalibrated", "one_epoch")
RECALIBRATION, EPOCH, OTHER = 1024, 5000, 1000  # images, images, what is added to the seed for other images
Row = dict[str, Any]


def main() -> None:
    """Make the rows that are missing."""
    command_line = parser(__doc__)
    command_line.add_argument("--models", nargs="*", default=MODELS)
    command_line.add_argument("--match", nargs="*", default=("macs", "params"))
    command_line.add_argument("--methods", nargs="*", default=list(METHODS))
    command_line.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    command_line.add_argument("--shares", nargs="*", type=float, default=SHARES)
    command_line.add_argument("--stages", nargs="*", default=STAGES[:2], choices=STAGES)
    options = command_line.parse_args()
    rows = stored(NAME)
    for model in options.models:
        if not any(row["method"] == "dense" and row["model"] == model for row in rows):
            rows.append(row_of(model, "dense", "", 0.0, "prune_only", 0, load(model), 0.0))
    wanted = [
        (model, match, share, method, seed)
        for model in options.models
        for match in options.match
        for seed in options.seeds
        for share in options.shares
        for method in options.methods
        if model != "ConvNeXt" or method not in NOT_FOR_CONVNEXT
    ]
    for combination in track(wanted, "narrowing"):
        missing = [stage for stage in options.stages if not done(rows, stage, *combination)]
        if missing:
            rows += measured(missing, *combination)
            save(rows)
    save(rows)
    draw(rows)


def measured(stages: list[str], model: str, match: str, share: float, method: str, seed: int) -> list[Row]:
    """Narrow by one method and score what is missing."""
    started = time.perf_counter()
    network = METHODS[method](model, seed, match, share)
    seconds = time.perf_counter() - started  # scores are kept: only the first budget of a seed pays for them
    versions = {"prune_only": network}
    if stages != ["prune_only"]:
        versions["bn_recalibrated"] = recalibrated(network, model, match, share, method, seed)
    if "one_epoch" in stages:
        versions["one_epoch"] = train_one_epoch(copy.deepcopy(versions["bn_recalibrated"]), EPOCH, seed + OTHER)
    return [row_of(model, method, match, share, stage, seed, versions[stage], seconds) for stage in stages]


def recalibrated(network: nn.Module, model: str, match: str, share: float, method: str, seed: int) -> nn.Module:
    """Return a copy after what the method does without training, and after BatchNorm recalibration."""
    network = copy.deepcopy(network)
    settle(network, method, model, seed, match, share)
    recalibrate_batchnorm(network, [x for x, _ in batches(RECALIBRATION, seed + OTHER)])
    return network


def row_of(
    model: str, method: str, match: str, share: float, stage: str, seed: int, network: nn.Module, seconds: float
) -> Row:
    """Score a network on all test images."""
    return {
        "model": model,
        "method": method,
        "match": match,
        "budget": share,
        "stage": stage,
        "seed": seed,
        "macs_share": 1 - removed(network, model, "macs"),
        "params_share": 1 - removed(network, model, "params"),
        "seconds": seconds,
        "peak_memory": peak_memory(torch.device("cpu")),
        "top1_lossless": 100 * float(hits(network, "cifar10_lossless").mean()),
        **accuracy(hits(network)),
    }


def save(rows: list[Row]) -> None:
    """Write JSON and Markdown, with all commands that made rows."""
    commands = commands_so_far(NAME)
    write(NAME, {"commands": commands, "rows": rows}, markdown(rows, commands))


def draw(rows: list[Row]) -> None:
    """Write the curves."""
    shown = tuple(model for model in MODELS if any(row["model"] == model for row in rows))
    plot_curves(rows, shown).savefig(RESULTS / f"{NAME}.png", dpi=130, bbox_inches="tight")


def done(rows: list[Row], stage: str, model: str, match: str, share: float, method: str, seed: int) -> bool:
    """Whether a row is there."""
    key = (model, match, share, method, seed, stage)
    names = ("model", "match", "budget", "method", "seed", "stage")
    return any(tuple(row[name] for name in names) == key for row in rows)


def hits_of(rows: list[Row]) -> NDArray[np.float64]:
    """Return hits per image, the mean over seeds."""
    return np.mean([unpacked(row["hits"], row["n"]) for row in rows], axis=0)


def ahead(ours: list[Row], theirs: list[Row]) -> str:
    """Return by how much ours is ahead on the same images and seeds, with the paired 95% interval over images."""
    seeds = {row["seed"] for row in ours} & {row["seed"] for row in theirs}
    first, second = ([row for row in rows if row["seed"] in seeds] for rows in (theirs, ours))
    if not seeds:
        return ""
    return ahead_by(hits_of(second), hits_of(first))


COLUMNS = ("method", *(name for share in SHARES for name in (f"{share:.0%}", "default ahead by")))


def markdown(rows: list[Row], commands: list[str]) -> str:
    """Render one table per network, cost and stage: the mean over seeds, and how far the default is ahead."""
    lines = [
        "# Width pruning against its peers: CIFAR-10, 10,000 test JPEGs",
        "",
        *made_by(commands),
    ]
    lines += [f"![Top-1 over MACs removed, without training]({NAME}.png)", ""]
    lines += [
        f"Dense {row['model']}: {row['top1']:.2f}, {row['top1_lossless']:.2f} on the lossless images."
        for row in rows
        if row["method"] == "dense"
    ]
    tables: dict[tuple[str, str, str], dict[str, dict[float, list[Row]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in rows:
        if row["method"] != "dense":
            tables[row["model"], row["match"], row["stage"]][row["method"]][row["budget"]].append(row)
    for (model, match, stage), found in sorted(tables.items()):
        what = {"macs": "MACs", "params": "parameters"}[match]
        lines += ["", f"## {model}, share of {what} removed, {stage.replace('_', ' ')}", ""]
        cells = (
            (method, *(cell for share in SHARES for cell in _cells(found, method, share, match)))
            for method in METHODS
            if method in found
        )
        lines += [table(COLUMNS, cells)]
    lines += [
        "",
        "Top-1 on the 10,000 JPEGs, on the 400 lossless images, mean over seeds (number of seeds; MACs removed where "
        "parameters are matched); ahead by: on the JPEGs, paired 95% interval. The default reconstructs its layers on "
        "the scored training images before BatchNorm is recalibrated, and enters the "
        f"training epoch, of {EPOCH:,} images, so. Units are "
        f"chosen on {SCORED} training images, BatchNorm recalibrated on {RECALIBRATION:,} others; scores are in bf16 "
        "where the processor multiplies in it. The ConvNeXt has no BatchNorm: nothing is reconstructed. network-pruner "
        f"leaves it unable to run. The epoch is at one learning rate for all methods, {LEARNING_RATE:g}: "
        "[best rates](best_rates.md) says what was run at the best of three for each.",
    ]
    return "\n".join(lines)


def _cells(found: dict[str, dict[float, list[Row]]], method: str, share: float, match: str) -> tuple[str, str]:
    rows = found[method][share]
    if not rows:
        return "", ""
    macs = f"; {1 - np.mean([row['macs_share'] for row in rows]):.0%} MACs" if match == "params" else ""
    jpeg, lossless = (np.mean([row[name] for row in rows]) for name in ("top1", "top1_lossless"))
    top1 = f"{jpeg:.1f}, {lossless:.1f} ({len(rows)}{macs})"
    return top1, "" if method == OURS else ahead(found[OURS][share], rows)


if __name__ == "__main__":
    main()
