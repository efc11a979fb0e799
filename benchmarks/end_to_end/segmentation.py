"""Street scenes: a DeiT-Tiny segmenter on CamVid loses 30% of its MACs in width and recovers; 233 test scenes.

    PRUNERECOVER_DATA=... python -m benchmarks.end_to_end.segmentation

Runs the shipped recipe through the command line: once without its surgery, and once more from the epoch of the surgery
on, with it. So both networks learn for as many epochs under the same schedule, from the same start. Checkpoints are
chosen on the validation split; the test split is scored once, at the end. Resumable: a run that is killed goes on from
its last epoch, a finished one is not repeated. About an hour on a core.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from benchmarks.data.real import CHECKPOINTS, ROOT, parser

NAME, RECIPE = "segmentation", "segmenter_width_camvid"
FOLDER = CHECKPOINTS / NAME
SURGERY = ("WidthPrune", "DistillRecover", "PruneReport")


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
    """Train to the end, from the last epoch that an earlier run saved, and return the folder of the checkpoints.

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
        command = [sys.executable, "-m", "prunerecover", "fit", "--config", str(folder / "config.yaml")]
        command += ["--trainer.logger=false", f"--trainer.default_root_dir={folder}"]
        subprocess.run([*command, *([f"--ckpt_path={last}"] if last else [])], check=True)
        (folder / "finished").touch()
    return folder


def main() -> None:
    """Train what is not trained yet."""
    parser(__doc__).parse_args()
    dense = fit("dense", without_surgery(), None)
    fit("pruned", recipe(), dense / f"epoch={start() - 1}.ckpt")


if __name__ == "__main__":
    main()
