"""Street scenes: a DeiT-Tiny segmenter on CamVid without 30% of its MACs in width, recovered; 233 test scenes.

    PRUNERECOVER_DATA=... python -m benchmarks.end_to_end.segmentation

Runs the shipped recipe through the command line: once without its surgery, and once more with it, from the epoch of the
surgery on. Both networks train for the same number of epochs under the same schedule, from the same start. Checkpoints
are chosen on the validation split; the test split is scored once, at the end. A killed run continues from its last
validation, a finished one is not repeated. About half an hour on a core.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import nn

from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.page import Table, figure, signed, text
from benchmarks.runner.plans import shares
from benchmarks.runner.rows import CHECKPOINTS, ROOT, Figure, Row
from prunerecover import Plan, apply_plan, load_pruned
from prunerecover.cost.latency import latency_ratio
from prunerecover.cost.macs import count_macs
from prunerecover.display.markdown import table
from prunerecover.recipes.data.segmentation_data import IGNORED, SegmentationData
from prunerecover.recipes.tasks.segmenter import ImageSegmenter

RECIPE, RECOVERED = "segmenter_width_camvid", "recovered"
FOLDER = CHECKPOINTS / "segmentation"
SURGERY = ("WidthPrune", "DistillRecover", "PruneReport")
RESAMPLES = 10_000
Counts = NDArray[np.float64]  # pixels by image, true and predicted class


def recipe() -> dict[str, Any]:
    """Return the recipe."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "configs" / f"{RECIPE}.yaml").read_text())
    return found


def start() -> int:
    """Return the epoch of the surgery."""
    return int(recipe()["trainer"]["callbacks"][0]["init_args"]["schedule"]["start"])


def without_surgery() -> dict[str, Any]:
    """Return the recipe without surgery, with a checkpoint of the last epoch before the original surgery."""
    config = recipe()
    callbacks = [c for c in config["trainer"]["callbacks"] if c["class_path"] not in SURGERY]
    every = {"filename": "{epoch}", "every_n_epochs": start(), "save_top_k": -1}
    config["trainer"]["callbacks"] = [*callbacks, {"class_path": "ModelCheckpoint", "init_args": every}]
    return config


def fit(stage: str, config: dict[str, Any], begin: Path | None) -> Path:
    """Train to the end, from the last checkpoint of an earlier run if any; return the folder of the checkpoints.

    Args:
        stage: Names the folder.
        config: Configuration to run.
        begin: The checkpoint to begin with.
    """
    folder = FOLDER / stage
    folder.mkdir(parents=True, exist_ok=True)
    for callback in config["trainer"]["callbacks"]:
        if callback["class_path"] == "ModelCheckpoint":
            callback["init_args"]["dirpath"] = str(folder)
    if not (folder / "finished").is_file():
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        last = max(folder.glob("last*.ckpt"), key=lambda path: path.stat().st_mtime, default=begin)
        arguments = [sys.executable, "-m", "prunerecover", "fit", "--config", str(folder / "config.yaml")]
        arguments += ["--trainer.logger=false", f"--trainer.default_root_dir={folder}"]
        subprocess.run([*arguments, *([f"--ckpt_path={last}"] if last else [])], check=True)
        (folder / "finished").touch()
    return folder


def best(folder: Path) -> Path:
    """Return the best checkpoint on the validation split."""
    last = max(folder.glob("last*.ckpt"), key=lambda path: path.stat().st_mtime)
    states = torch.load(last, map_location="cpu", weights_only=False)["callbacks"]
    (path,) = (s["best_model_path"] for s in states.values() if str(s.get("monitor")) == "val_miou")
    return folder / Path(path).name


def networks(dense: Path, pruned: Path) -> dict[str, nn.Module]:
    """Return the segmenters by stage."""
    before = dense / f"epoch={start() - 1}.ckpt"
    only_pruned = ImageSegmenter.load_from_checkpoint(before, map_location="cpu", weights_only=True)
    apply_plan(only_pruned.network, Plan.load(pruned / "plan.json"))
    return {
        "dense": ImageSegmenter.load_from_checkpoint(best(dense), map_location="cpu", weights_only=True).eval(),
        "pruned, before recovery": only_pruned.eval(),
        RECOVERED: load_pruned(best(pruned), ImageSegmenter).eval(),
    }


def counted(network: nn.Module, batches: Any, classes: int) -> Counts:
    """Return pixels by image, true and predicted class, `(N, classes, classes)`."""
    found = []
    with torch.inference_mode():
        for images, target in batches:
            for predicted, true in zip(network(images).argmax(1), target, strict=True):
                scored = true != IGNORED
                pairs = true[scored] * classes + predicted[scored]
                found.append(pairs.bincount(minlength=classes**2).view(classes, classes).double().numpy())
    return np.stack(found)


def class_iou(counts: Counts) -> Counts:
    """Return intersection over union of each class, nan for absent classes, from counts `(..., C, C)`."""
    hits = np.diagonal(counts, axis1=-2, axis2=-1)
    union = counts.sum(-1) + counts.sum(-2) - hits
    with np.errstate(invalid="ignore"):
        return hits / union


def miou(counts: Counts) -> Counts:
    """Return the mean IoU in percent over the present classes."""
    return 100 * np.nanmean(class_iou(counts), -1)


def pixel_accuracy(counts: Counts) -> Counts:
    """Return the share of right pixels in percent."""
    return 100 * np.trace(counts, axis1=-2, axis2=-1) / counts.sum((-1, -2))


def drawn(counts: Counts, seed: int = 0) -> Counts:
    """Return the counts of bootstrap samples of the images, the same images for any counts of as many."""
    n = len(counts)
    times = np.random.default_rng(seed).multinomial(n, [1 / n] * n, size=RESAMPLES).astype(np.float64)
    return (times @ counts.reshape(n, -1)).reshape(RESAMPLES, *counts.shape[1:])


def interval(value: float, drawn_values: Counts, n: int) -> Figure:
    """Return a figure with a 95% percentile interval."""
    low, high = np.quantile(drawn_values, (0.025, 0.975))
    return Figure(value, float(low), float(high), n)


def measure() -> Iterator[dict[str, Any]]:
    """Train all untrained stages, score on the test split, count and time."""
    config = recipe()
    first = fit("dense", without_surgery(), None)
    found: Any = networks(first, fit("pruned", config, first / f"epoch={start() - 1}.ckpt"))
    data = SegmentationData(**{**config["data"]["init_args"], "num_workers": 0})
    data.prepare_data()
    data.setup("test")
    names = config["model"]["init_args"]["classes"]
    example = next(iter(data.test_dataloader()))[0][:1]
    counts = {name: counted(network, data.test_dataloader(), len(names)) for name, network in found.items()}
    samples = {name: miou(drawn(values)) for name, values in counts.items()}
    whole = {name: float(miou(values.sum(0))) for name, values in counts.items()}
    for name, values in counts.items():
        n, network = len(values), found[name].network
        figures = {"miou": interval(whole[name], samples[name], n)}
        if name == RECOVERED:
            change = whole[name] - whole["dense"], samples[name] - samples["dense"]
            timed = latency_ratio(found["dense"].network, network, example, threads=1)
            figures |= {"ahead": interval(*change, n), "time": Figure.within(timed.ratio, timed.pairs)}
        yield {
            "method": name,
            **figures,
            "pixel_accuracy": float(pixel_accuracy(values.sum(0))),
            "macs": count_macs(network, example),
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            **shares(found["dense"].network, network, example),
            "iou": dict(zip(names, (100 * class_iou(values.sum(0))).tolist(), strict=True)),
        }


def classes(rows: Sequence[Row]) -> str:
    """Render the IoU of each class."""
    by = {row.method: row["iou"] for row in rows}
    lines = [(name, *(f"{iou[name]:.1f}" for iou in by.values())) for name in next(iter(by.values()))]
    return table(("class", *by), lines)


BENCHMARK = Benchmark(
    title="A segmenter on CamVid without three tenths of its MACs: 233 test scenes",
    text=f"""The recipe `{RECIPE}`: DeiT-Tiny with a linear decoder, trained on 367 scenes. The dense network goes on
    from the epoch of the surgery as the pruned one does, for as many epochs under the same schedule. Checkpoints are
    chosen on the validation split. One run; intervals are of a bootstrap over the test scenes, paired where two
    networks are compared, and know nothing of other runs. Time: of one image on one CPU thread, in interleaved
    pairs.""",
    measure=measure,
    references=[{}],
    also=("method",),
    complete=False,
    tables=(
        Table(
            [
                text("method", "model"),
                figure("miou", "mIoU, %"),
                signed("ahead", "ahead of dense"),
                text("pixel_accuracy", "pixel accuracy, %", "{:.1f}"),
                text("macs", "MACs", "{:,}"),
                text("macs_share", "", "{:.1%}"),
                text("parameters", "", "{:,}"),
                text("params_share", "", "{:.1%}"),
                figure("time", "time", 2),
            ]
        ),
        Table((), "IoU of each class, %", text=classes),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
