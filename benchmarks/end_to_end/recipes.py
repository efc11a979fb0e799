"""Recipes through the command line: the metric before surgery and at the end, what is left, and minutes.

    python -m benchmarks.end_to_end.recipes

Recipes without a download run as they are, with three seeds. Half an hour on a core.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from contextlib import chdir
from pathlib import Path
from typing import Any

from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, figure, text
from benchmarks.runner.rows import Figure
from prunerecover.recipes.cli.lightning_cli import RecipeCLI, run
from prunerecover.recipes.cli.main import recipe_path

RECIPES = ("digits_vit_depth", "digits_vit_lora", "digits_vit_until_quality_falls")


def command(name: str, recipe: str, seed: int, *more: str) -> RecipeCLI:
    """Run a command of the command line on a recipe."""
    options = ("--seed_everything", str(seed), "--trainer.logger", "false", *more)
    return run([name, "--config", recipe_path(recipe), *options])


def tested(recipe: str, seed: int, metric: str, *more: str) -> Figure:
    """Return a metric of the test split."""
    cli = command("test", recipe, seed, *more)
    samples = len(cli.datamodule.test_dataloader().dataset)
    return Figure(float(cli.trainer.callback_metrics[metric]), n=samples)


def epoch_of(path: Path) -> int:
    """Return the epoch in a checkpoint's name."""
    found = re.search(r"epoch=(\d+)", path.name)
    return int(found[1]) if found else -1


def measure(method: str, seed: int) -> dict[str, Any]:
    """Fit a recipe, and test the best checkpoint, and the best one before any surgery or the network at the start."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        started = time.perf_counter()
        chosen: Any = command("fit", method, seed).trainer.checkpoint_callback
        minutes = (time.perf_counter() - started) / 60
        best = Path(chosen.best_model_path)
        metric = chosen.monitor.replace("val_", "test_")
        earlier = sorted(set(best.parent.glob("epoch=*.ckpt")) - {best}, key=epoch_of)
        report = json.loads(Path("report/report.json").read_text())
        dense = tested(method, seed, metric, *(f"--ckpt_path={path}" for path in earlier[:1]))
        end = tested(method, seed, metric, f"--ckpt_path={best}")
    left = {name: report["pruned"][name] / report["dense"][name] for name in ("parameters", "macs")}
    ratio = {name: report["latency"]["ratio"][name] for name in ("value", "low", "high")}
    figures = {"dense": dense, "end": end, "latency": Figure(**ratio, n=report["latency"]["pairs"])}
    figures |= {name: Figure(share) for name, share in left.items()} | {"minutes": Figure(minutes)}
    return {**figures, "metric": metric, "logged": report["logged"][chosen.monitor]}


BENCHMARK = Benchmark(
    title="Recipes that were run",
    text="""Recipes through `prunerecover fit` on one core, beside other work. Test metric of the best checkpoint
    before the first surgery, or of the network that the recipe starts from, and of the best checkpoint of the pruned
    network; checkpoints are chosen on the validation split. Left of the dense network: parameters, MACs, and latency as
    the median ratio of the report's interleaved pairs. Means, and each seed in brackets. Minutes: the whole fit by
    the clock, with planning and report.""",
    measure=measure,
    axes={"method": Axis(RECIPES, "--recipes"), "seed": Axis((1, 2, 3))},
    tables=(
        Table(
            [
                text("method", "recipe", "`{}`"),
                text("metric"),
                figure("dense", "dense", 3),
                figure("end", "recovered", 3),
                figure("parameters", "parameters left", 1, 100, "%"),
                figure("macs", "MACs left", 1, 100, "%"),
                figure("latency", "latency left", 2),
                figure("minutes", "minutes"),
            ],
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
