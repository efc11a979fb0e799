"""Street scenes: a DeiT-Tiny segmenter on CamVid loses 30% of its MACs in width and recovers; 233 test scenes.

    PRUNERECOVER_DATA=... python -m benchmarks.end_to_end.segmentation

Runs the shipped recipe through the command line: once without its surgery, and once more from the epoch of the surgery
on, with it. So both networks learn for as many epochs under the same schedule, from the same start. Checkpoints are
chosen on the validation split; the test split is scored once, at the end. Resumable: a run that is killed goes on from
its last validation, a finished one is not repeated. About half an hour on a core.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import nn

from benchmarks.data.real import CHECKPOINTS, ROOT, command, parser, write
from prunerecover import Plan, apply_plan, load_pruned
from prunerecover.cost.latency import latency_ratio
from prunerecover.cost.macs import count_macs
from prunerecover.display.markdown import table
from prunerecover.recipes.data.segmentation_data import IGNORED, SegmentationData
from prunerecover.recipes.tasks.segmenter import ImageSegmenter

NAME, RECIPE = "segmentation", "segmenter_width_camvid"
FOLDER = CHECKPOINTS / NAME
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
    """Return the recipe that only trains, and keeps a checkpoint of the epoch before the surgery."""
    config = recipe()
    callbacks = [c for c in config["trainer"]["callbacks"] if c["class_path"] not in SURGERY]
    every = {"filename": "{epoch}", "every_n_epochs": start(), "save_top_k": -1}
    config["trainer"]["callbacks"] = [*callbacks, {"class_path": "ModelCheckpoint", "init_args": every}]
    return config


def fit(stage: str, config: dict[str, Any], begin: Path | None) -> Path:
    """Train to the end, from what an earlier run saved last, and return the folder of the checkpoints.

    Args:
        stage: Names the folder.
        config: What to run.
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
    """Return the checkpoint that is best on the validation split."""
    last = max(folder.glob("last*.ckpt"), key=lambda path: path.stat().st_mtime)
    states = torch.load(last, map_location="cpu", weights_only=False)["callbacks"]
    (path,) = (s["best_model_path"] for s in states.values() if str(s.get("monitor")) == "val_miou")
    return folder / Path(path).name


def networks(dense: Path, pruned: Path) -> dict[str, nn.Module]:
    """Return the segmenters by what was done to them."""
    before = dense / f"epoch={start() - 1}.ckpt"
    only_pruned = ImageSegmenter.load_from_checkpoint(before, map_location="cpu", weights_only=True)
    apply_plan(only_pruned.network, Plan.load(pruned / "plan.json"))
    return {
        "dense": ImageSegmenter.load_from_checkpoint(best(dense), map_location="cpu", weights_only=True).eval(),
        "pruned, before recovery": only_pruned.eval(),
        "recovered": load_pruned(best(pruned), ImageSegmenter).eval(),
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
    """Return intersection over union of each class, nan for those that do not occur, of counts `(..., C, C)`."""
    hits = np.diagonal(counts, axis1=-2, axis2=-1)
    union = counts.sum(-1) + counts.sum(-2) - hits
    with np.errstate(invalid="ignore"):
        return hits / union


def miou(counts: Counts) -> Counts:
    """Return the mean IoU in percent over the classes that occur."""
    return 100 * np.nanmean(class_iou(counts), -1)


def pixel_accuracy(counts: Counts) -> Counts:
    """Return the share of right pixels in percent."""
    return 100 * np.trace(counts, axis1=-2, axis2=-1) / counts.sum((-1, -2))


def drawn(counts: Counts, seed: int = 0) -> Counts:
    """Return the counts of bootstrap samples of the images, the same images for any counts of as many."""
    n = len(counts)
    times = np.random.default_rng(seed).multinomial(n, [1 / n] * n, size=RESAMPLES).astype(np.float64)
    return (times @ counts.reshape(n, -1)).reshape(RESAMPLES, *counts.shape[1:])


def interval(values: Counts) -> dict[str, float]:
    """Return the 95% percentile interval."""
    low, high = np.quantile(values, (0.025, 0.975))
    return {"ci_low": float(low), "ci_high": float(high)}


def judged(found: dict[str, nn.Module]) -> dict[str, Any]:
    """Score on the test split, count and time."""
    config = recipe()
    settings = {**config["data"]["init_args"], "num_workers": 0}
    data = SegmentationData(**settings)
    data.prepare_data()
    data.setup("test")
    names = config["model"]["init_args"]["classes"]
    example = next(iter(data.test_dataloader()))[0][:1]
    counts = {name: counted(network, data.test_dataloader(), len(names)) for name, network in found.items()}
    samples = {name: drawn(values) for name, values in counts.items()}
    change = miou(samples["recovered"]) - miou(samples["dense"])
    value = float(miou(counts["recovered"].sum(0)) - miou(counts["dense"].sum(0)))
    timed = latency_ratio(found["dense"].network, found["recovered"].network, example, threads=1)  # type: ignore[arg-type]
    return {
        "rows": [
            {
                "model": name,
                "miou": float(miou(values.sum(0))),
                **interval(miou(samples[name])),
                "pixel_accuracy": float(pixel_accuracy(values.sum(0))),
                "macs": count_macs(found[name].network, example),  # type: ignore[arg-type]
                "parameters": sum(p.numel() for p in found[name].network.parameters()),  # type: ignore[union-attr]
                "n": len(values),
                "seed": config["seed_everything"],
            }
            for name, values in counts.items()
        ],
        "difference": {"points": value, **interval(change)},
        "latency": {
            "ratio": timed.ratio.value,
            "ci_low": timed.ratio.low,
            "ci_high": timed.ratio.high,
            "dense_ms": timed.dense_ms,
            "pruned_ms": timed.pruned_ms,
            "threads": timed.threads,
        },
        "iou": {
            name: dict(zip(names, (100 * class_iou(values.sum(0))).tolist(), strict=True))
            for name, values in counts.items()
        },
        "epochs": {"all": config["trainer"]["max_epochs"], "surgery": start()},
        "pixels": settings["image_size"],
    }


def markdown(result: dict[str, Any]) -> str:
    """Render the page."""
    rows, iou, time, change = result["rows"], result["iou"], result["latency"], result["difference"]
    first, epochs = rows[0], result["epochs"]
    scores = [
        (
            row["model"],
            f"{row['miou']:.1f} ({row['ci_low']:.1f} to {row['ci_high']:.1f})",
            f"{row['pixel_accuracy']:.1f}",
            f"{row['macs']:,} ({row['macs'] / first['macs']:.1%})",
            f"{row['parameters']:,} ({row['parameters'] / first['parameters']:.1%})",
        )
        for row in rows
    ]
    height, width = result["pixels"]
    lines = [
        f"# A segmenter on CamVid without three tenths of its MACs: {first['n']} test scenes",
        "",
        f"`{command()}`",
        "",
        f"The recipe `{RECIPE}`: DeiT-Tiny with a linear decoder at {height} x {width} pixels, {epochs['all']} epochs "
        f"of the 367 training scenes. The surgery is at epoch {epochs['surgery']}; the dense network goes on from "
        "there as the pruned one does, for as many epochs under the same schedule. Checkpoints are chosen on the "
        f"validation split. One run (seed {first['seed']}); intervals are of a bootstrap over the test scenes and "
        "know nothing of other runs.",
        "",
        table(("model", "mIoU, % (95% interval)", "pixel accuracy, %", "MACs", "parameters"), scores),
        "",
        f"Recovered and dense differ by {change['points']:+.1f} points of mIoU ({change['ci_low']:+.1f} to "
        f"{change['ci_high']:+.1f}, paired). One image takes {time['ratio']:.2f} ({time['ci_low']:.2f} to "
        f"{time['ci_high']:.2f}) of the dense network's time on {time['threads']} CPU thread ({time['dense_ms']:.1f} "
        f"and {time['pruned_ms']:.1f} ms, interleaved pairs).",
        "",
        "## IoU of each class, %",
        "",
        table(("class", *iou), [(name, *(f"{iou[model][name]:.1f}" for model in iou)) for name in iou["dense"]]),
    ]
    return "\n".join(lines)


def main() -> None:
    """Train what is not trained yet, judge and write."""
    parser(__doc__).parse_args()
    dense = fit("dense", without_surgery(), None)
    pruned = fit("pruned", recipe(), dense / f"epoch={start() - 1}.ckpt")
    result = judged(networks(dense, pruned))
    write(NAME, result, markdown(result))


if __name__ == "__main__":
    main()
