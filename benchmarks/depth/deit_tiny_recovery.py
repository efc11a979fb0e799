"""Real recovery: DeiT-Tiny, 6 activations and 2 attentions removed, an epoch on 2,000 tiny_imagenet images.

    PRUNERECOVER_DATA=... python -m benchmarks.depth.deit_tiny_recovery

Runs the shipped recipe through the command line, then scores the result in new processes on all 5,000 validation
images: by `prunerecover test` from the checkpoint, by `load_pruned` on the checkpoint, and by `load_pruned` on a saved
folder.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Picture

from benchmarks.data.real import deit_tiny
from benchmarks.data.tiny_imagenet import correct, image_data
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.page import Table, figure, text
from benchmarks.runner.plans import pruned, removed
from benchmarks.runner.rows import RESULTS, Figure, Row, Scores
from prunerecover import Plan, Report, find_units, load_pruned, save_pruned
from prunerecover.cost.statistics import paired_difference

RECIPE, REPORT = "deit_tiny_imagenet200_depth", RESULTS / "deit_tiny_recovery_report.json"
FOLDER = Path(tempfile.gettempdir()) / "prunerecover_deit_tiny_recovery"


def run(*arguments: str) -> str:
    """Run the command line in a new process and return its output."""
    command = [sys.executable, "-m", "prunerecover", *arguments, "--trainer.logger=false"]
    command += [f"--trainer.default_root_dir={FOLDER}", "--config", RECIPE]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, check=True)
    return done.stdout


def checkpoint() -> Path:
    """Train once and return the last checkpoint; a finished run is not repeated."""
    if not list(FOLDER.rglob("last.ckpt")):
        run("fit")
    return next(FOLDER.rglob("last.ckpt"))


def tested(path: Path) -> float:
    """Return test_top1 from a new process."""
    printed = run("test", f"--ckpt_path={path}")
    match = re.search(r"test_top1\D+([\d.]+)", printed)
    assert match is not None, printed
    return float(match.group(1))


def measure() -> Iterator[dict[str, Any]]:
    """Train, and judge each way to the recovered network."""
    path = checkpoint()
    data = image_data(batch_size=100, num_workers=2)
    data.setup("validate")
    plan, recovered = Plan.load(path.parent / "plan.json"), load_pruned(path)
    save_pruned(recovered, plan, FOLDER / "saved")
    shutil.copy(FOLDER / "report" / "report.json", REPORT)
    report = Report.load(REPORT)
    models = {
        "dense": (deit_tiny(), report.dense),
        "prune_only": (pruned(deit_tiny(), plan, merged=False), report.pruned),
        "recovered": (recovered, report.pruned),
        "recovered, saved and loaded": (load_pruned(FOLDER / "saved"), report.pruned),
        "recovered, merged copy": (load_pruned(path.parent / "pruned"), report.pruned),
    }
    hits: dict[str, Scores] = {}
    for method, (model, costs) in models.items():
        hits[method] = correct(model, data.val_dataloader())
        found = {"top1": Figure.of(hits[method])}
        if method == "recovered":
            gain = paired_difference(hits["prune_only"], hits[method], seed=0)
            found |= {"gain": Figure.within(gain, len(hits[method])), "tested": Figure(float(hits[method].mean()))}
        notes = {"parameters": costs.parameters, "macs": costs.macs_per_sample, "removed": removed(plan)}
        yield {"method": method, **found, **notes}
    yield {"method": "`prunerecover test` in a new process", "tested": Figure(tested(path))}


def picture(rows: Sequence[Row]) -> Picture:
    """Draw the removed layers."""
    plan = Plan.load(next(FOLDER.rglob("plan.json")))
    drawn: Picture = plan.plot(units=find_units(deit_tiny(), kinds=("attention", "activation")))
    return drawn


def closing(rows: Sequence[Row]) -> list[str]:
    """Return lines on the removed units, and on the savings."""
    by = {row.method: row for row in rows}
    dense, other = by["dense"], by["recovered"]
    gone = ", ".join(name for names in other["removed"].values() for name in names)
    less = " and ".join(f"{other[cost] / dense[cost] - 1:+.1%} {cost}" for cost in ("parameters", "macs"))
    return [f"Removed: {gone}; {less}."]


BENCHMARK = Benchmark(
    title="DeiT-Tiny recovered in one epoch of 2,000 images (tiny_imagenet, its 200 classes, 5,000 validation images)",
    text="""Gain: over the same units removed without training, on the same images, paired. The network of a checkpoint,
    of a saved folder and of a merged copy are the same.""",
    measure=measure,
    references=[{}],
    also=("method",),
    threads=0,
    complete=False,
    tables=(
        Table(
            [
                text("method", "model"),
                figure("top1", "top-1 (95% interval)", 2, 100),
                figure("gain", "gain", 2, 100),
                figure("tested", "test_top1", 16),
                text("parameters", "", "{:,}"),
                text("macs", "MACs per image", "{:,.0f}"),
            ]
        ),
    ),
    closing=closing,
    pictures={"_layers": picture},
)

if __name__ == "__main__":
    BENCHMARK.main()
