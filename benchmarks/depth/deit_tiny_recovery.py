"""Real recovery: DeiT-Tiny, 6 activations and 2 attentions removed, one epoch on 2,000 tiny_imagenet images.

    PRUNERECOVER_DATA=... python -m benchmarks.depth.deit_tiny_recovery

Runs the shipped recipe through the command line, then judges it in new processes on all 5,000 validation images: the
figure of `prunerecover test` from the checkpoint, of `load_pruned` on the checkpoint, and of `load_pruned` on a saved
folder.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.data.real import RESULTS, correct, data_root, deit_tiny, image_data, parser, write
from prunerecover import Plan, Report, apply_plan, find_units, load_pruned, save_pruned
from prunerecover.cost.statistics import paired_difference, wilson_interval
from prunerecover.display.markdown import table

RECIPE = "deit_tiny_imagenet200_depth"
FOLDER = Path(tempfile.gettempdir()) / "prunerecover_deit_tiny_recovery"


def run(*arguments: str) -> str:
    """Run the command line in a new process and return what it printed."""
    command = [sys.executable, "-m", "prunerecover", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, check=True)
    return done.stdout


def fit() -> Path:
    """Train once and return the last checkpoint; a finished run is not repeated."""
    if not list(FOLDER.rglob("last.ckpt")):
        run("fit", "--config", RECIPE, f"--trainer.default_root_dir={FOLDER}", "--trainer.logger=false")
    return next(FOLDER.rglob("last.ckpt"))


def tested(checkpoint: Path) -> float:
    """Return test_top1 as a new process prints it."""
    arguments = ["test", "--config", RECIPE, f"--ckpt_path={checkpoint}", "--trainer.logger=false"]
    printed = run(*arguments, f"--trainer.default_root_dir={FOLDER}")
    match = re.search(r"test_top1\D+([\d.]+)", printed)
    assert match is not None, printed
    return float(match.group(1))


def main() -> None:
    """Train, judge and write."""
    parser(__doc__).parse_args()
    checkpoint = fit()
    classes = torch.tensor(
        json.loads((data_root() / "data/tiny_imagenet/imagenet1k_index.json").read_text())["imagenet1k_index"]
    )
    data = image_data("tiny_imagenet", batch_size=100, num_workers=2)
    data.setup("validate")
    plan = Plan.load(checkpoint.parent / "plan.json")
    pruned_only = deit_tiny()
    apply_plan(pruned_only, plan)
    recovered = load_pruned(checkpoint)
    save_pruned(recovered, plan, FOLDER / "saved")
    models = {
        "dense": deit_tiny(),
        "prune_only": pruned_only,
        "recovered": recovered,
        "recovered, saved and loaded": load_pruned(FOLDER / "saved"),
        "recovered, merged copy": load_pruned(checkpoint.parent / "pruned"),
    }
    hits = {name: correct(model, data.val_dataloader(), classes) for name, model in models.items()}
    rows = [_row(name, values) for name, values in hits.items()]
    gain = paired_difference(hits["prune_only"].float().numpy(), hits["recovered"].float().numpy(), seed=0)
    result = {
        "rows": rows,
        "removed": {kind: list(names) for kind, names in plan.removed.items()},
        "gain": {"points": 100 * gain.value, "ci_low": 100 * gain.low, "ci_high": 100 * gain.high},
        "test_top1_in_a_new_process": tested(checkpoint),
        "recovered_top1": float(hits["recovered"].float().mean()),
    }
    shutil.copy(FOLDER / "report" / "report.json", RESULTS / "deit_tiny_recovery_report.json")
    result["costs"] = costs()
    write("deit_tiny_recovery", result, markdown(result))
    figure = plan.plot(units=find_units(deit_tiny(), kinds=("attention", "activation")))
    figure.savefig(RESULTS / "deit_tiny_recovery_layers.png", dpi=110, bbox_inches="tight")


def _row(name: str, hits: torch.Tensor) -> dict[str, Any]:
    interval = wilson_interval(int(hits.sum()), len(hits))
    return {
        "model": name,
        "top1": 100 * interval.value,
        "ci_low": 100 * interval.low,
        "ci_high": 100 * interval.high,
        "n": len(hits),
        "seed": 1,
    }


def costs() -> dict[str, dict[str, float]]:
    """Return parameters and MACs per image of both models, from the report of the run."""
    report = Report.load(RESULTS / "deit_tiny_recovery_report.json")
    models = {"dense": report.dense, "pruned": report.pruned}
    return {name: {"parameters": m.parameters, "macs_per_image": m.macs_per_sample} for name, m in models.items()}


def markdown(result: dict[str, Any]) -> str:
    """Render the result."""
    gain, dense = result["gain"], result["costs"]["dense"]
    scores = [(r["model"], f"{r['top1']:.2f} ({r['ci_low']:.2f}-{r['ci_high']:.2f})") for r in result["rows"]]
    costs = [
        (
            name,
            f"{found['parameters']:,}",
            f"{found['parameters'] / dense['parameters'] - 1:+.1%}",
            f"{found['macs_per_image']:,.0f}",
            f"{found['macs_per_image'] / dense['macs_per_image'] - 1:+.1%}",
        )
        for name, found in result["costs"].items()
    ]
    lines = [
        "# DeiT-Tiny recovered in one epoch of 2,000 images (tiny_imagenet, its 200 classes, 5,000 validation images)",
        "",
        "`python -m benchmarks.depth.deit_tiny_recovery`",
        "",
        f"Removed: {', '.join(name for names in result['removed'].values() for name in names)}.",
        "",
        table(("model", "top-1 (95% interval)"), scores),
        "",
        table(("model", "parameters", "change", "MACs per image", "change"), costs),
        "",
        f"Recovery adds {gain['points']:.2f} points ({gain['ci_low']:.2f} to {gain['ci_high']:.2f}, paired bootstrap).",
        f"`prunerecover test` in a new process: {result['test_top1_in_a_new_process']!r}; `load_pruned` on the "
        f"checkpoint: {result['recovered_top1']!r}.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
