"""Script for tests/checkpoint/every_kind: files of each kind, and the networks' contents and outputs.

The files predate the joint engine of depth and width, and are kept so that tests can show that such files still open
and give the same numbers. Do not write them again to let a test pass; add a new kind by name:

    OMP_NUM_THREADS=1 PYTHONPATH=tests python -m cases.files.write_every_kind FOLDER

Everything is seeded: a rewritten file is the same, but for the times in a checkpoint.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from cases.files import every_kind as cases
from cases.old_files import rounding
from safetensors.torch import save_file
from torch import Tensor

from prunerecover import apply_plan, merge, save_pruned, save_routed, sensitivity


def write_plans(folder: Path) -> None:
    """Write every plan, and the scores behind a plan of depth and a plan of width."""
    for name in cases.PLANS:
        cases.plan(name).save(folder / f"{name}.json")
    sensitivity(cases.dense("vit"), batches=cases.rows("vit")).save(folder / "scores.safetensors")


def write_folders(folder: Path) -> None:
    """Write a folder of each pruned network, merged where possible, and a folder with routes."""
    for name in cases.FOLDERS:
        network, _ = cases.PLANS[name]
        model, plan = cases.dense(network), cases.plan(name)
        apply_plan(model, plan)
        save_pruned(model, plan + merge(model), folder / name)
    save_routed(cases.routed(), folder / "routed", base="a base that is passed")


def write_checkpoints(folder: Path) -> dict[str, Tensor]:
    """Write a checkpoint of each fit; return the logits at its end."""
    found = {}
    for name in cases.CHECKPOINTS:
        with tempfile.TemporaryDirectory() as place:
            found[f"{name} resumed"] = cases.outputs(cases.fit(name, Path(place)).net)
            copy(Path(place) / "epoch=1.ckpt", folder / f"{name}.ckpt")
    return found


def copy(path: Path, target: Path) -> None:
    """Copy a checkpoint, without the name of the original folder."""
    checkpoint = torch.load(path, weights_only=True)
    for key in {"callbacks", "prunerecover"} & checkpoint.keys():
        checkpoint[key] = without(str(path.parent.resolve()), checkpoint[key])
    torch.save(checkpoint, target)


def without(place: str, data: Any) -> Any:
    """Return plain data with "run" for the name of a folder in all words."""
    if isinstance(data, str):
        return data.replace(place, "run")
    if isinstance(data, dict):
        return {without(place, key): without(place, value) for key, value in data.items()}
    return type(data)(without(place, value) for value in data) if isinstance(data, list | tuple) else data


def main(folder: Path) -> None:
    """Write everything into a new folder."""
    torch.set_num_threads(1)
    folder.mkdir()
    write_plans(folder)
    write_folders(folder)
    expected = write_checkpoints(folder)
    networks = {name: cases.opened(name, folder) for name in cases.NETWORKS}
    held = {name: cases.contents(network) for name, network in networks.items()}
    (folder / "held.json").write_text(json.dumps(held, indent=1) + "\n")
    expected |= {name: cases.outputs(network) for name, network in networks.items()}
    expected["routed"] = cases.answers(cases.reopened(folder))
    save_file(expected, folder / "expected.safetensors", rounding())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
