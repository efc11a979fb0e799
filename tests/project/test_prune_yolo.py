"""docs/prune_yolo.md: its files run as written, on tiny random images, with the installed ultralytics.

Nothing is downloaded: networks begin with random weights, and ultralytics works offline in a separate folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy
import pytest
from cases.docs.blocks import blocks_of, read
from cases.files.detection_folder import write_detection_folder
from cases.paths import ROOT

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ultralytics") is None, reason="ultralytics is not installed: pip install .[yolo]"),
]

FILES = {block.file: block.text for block in blocks_of(read("docs/prune_yolo.md")) if block.file}
SETTINGS = """
TRAIN = {{"data": {data!r}, "imgsz": 64, "batch": 4, "epochs": 2, "workers": 0, "plots": False, "device": "cpu"}}
WEIGHTS, SHARE = "best.pt", 0.05
"""
TRAIN_DENSE = """
from settings import TRAIN
from ultralytics import YOLO
yolo = YOLO("yolov8n.yaml")
yolo.train(**{**TRAIN, "epochs": 1})
yolo.save("best.pt")
"""
TRAIN_AS_EVER = """
from settings import TRAIN
from ultralytics import YOLO
yolo = YOLO("pruned.pt")
yolo.train(**{**TRAIN, "epochs": 1})
yolo.save("dense_again.pt")
"""
OTHER_CLASSES = """
from pathlib import Path
from pruned_trainer import PrunedTrainer
from settings import TRAIN
from ultralytics import YOLO
Path("three.yaml").write_text(Path(TRAIN["data"]).read_text().replace("1: second", "1: second, 2: third"))
try:
    YOLO("pruned.pt").train(trainer=PrunedTrainer, **{**TRAIN, "data": "three.yaml"})
except ValueError as error:
    print(error)
"""
COUNT = """
import sys
from ultralytics import YOLO
print(*(sum(p.numel() for p in YOLO(path).model.parameters()) for path in sys.argv[1:]))
"""

Run = Callable[..., str]


def runner(folder: Path) -> Run:
    """Return a function that runs a script in a folder, in a separate process without network or user settings."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "YOLO_CONFIG_DIR": str(folder / "config"),
        "YOLO_OFFLINE": "true",
        "YOLO_AUTOINSTALL": "false",
        "OMP_NUM_THREADS": "1",
    }

    def run(script: str, *arguments: str) -> str:
        command = [sys.executable, *(["-c", script] if "\n" in script else [script]), *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the page, after a network was trained and pruned there."""
    folder = tmp_path_factory.mktemp("yolo")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    data = write_detection_folder(folder / "images")
    (folder / "settings.py").write_text(SETTINGS.format(data=str(data)))
    run = runner(folder)
    run(TRAIN_DENSE)
    run("prune.py")
    return folder


def parameters(folder: Path, *paths: str) -> list[int]:
    return [int(count) for count in runner(folder)(COUNT, *paths).splitlines()[-1].split()]


def test_training_in_ultralytics_keeps_the_pruned_network(folder: Path) -> None:
    last = runner(folder)("train.py").rpartition("last.pt, to resume from: ")[2].strip()
    best = str(Path(last).with_name("best.pt"))
    dense, *pruned = parameters(folder, "best.pt", "pruned.pt", "recovered.pt", best, last)
    assert pruned[0] < 0.96 * dense
    assert len(set(pruned)) == 1


def test_training_without_the_trainer_builds_the_dense_network_again(folder: Path) -> None:
    """The page warns of this, as long as it holds."""
    runner(folder)(TRAIN_AS_EVER)
    dense, trained = parameters(folder, "best.pt", "dense_again.pt")
    assert dense == trained


def test_data_of_other_classes_are_refused(folder: Path) -> None:
    assert "Expected data of 2 classes, but got 3" in runner(folder)(OTHER_CLASSES)


def test_training_in_lightning_and_exports_that_get_smaller(folder: Path) -> None:
    run = runner(folder)
    for name in ("lightning_fit.py", "back_to_ultralytics.py"):
        run(name)
    dense, trained = parameters(folder, "best.pt", "from_lightning.pt")
    assert trained < 0.96 * dense
    shutil.copy(folder / "pruned.pt", folder / "recovered.pt")
    whole, *smaller = (float(size) for size in re.findall(r"\.pt: ([\d.]+) MB", run("export.py")))
    assert len(smaller) == 2
    assert max(smaller) < 0.97 * whole
    run("export_by_torch.py")
    session = onnxruntime.InferenceSession(folder / "pruned.onnx")
    (boxes,) = session.run(None, {session.get_inputs()[0].name: numpy.zeros((1, 3, 64, 64), numpy.float32)})
    assert boxes.shape == (1, 6, 84)
